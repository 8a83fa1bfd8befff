"""Searches several sizes at once for a model with a wanted number of parameters.

The finest size is fitted; the others run over their possible values. Every count comes from a model
built on the meta device, as in :mod:`elman.models.sizing`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from elman.base.errors import UserError
from elman.models.sizing import SIZES, count_params, resized_to, value_of
from elman.sections.model import ModelConfig
from elman.sections.modes import Size

NEAR = 0.005
"""Counts within this fraction of the target are equally good."""
FAR = 0.05
"""Counts further off are left out, except the nearest one if there is no other."""
BEST = 5
"""Number of configurations in the answer."""
RULE = (
    f"best first: those within {NEAR:.1%} of the target by how little they change the model's own "
    f"shape, the others by their distance from it, {FAR:.0%} at most"
)
_FINEST: tuple[Size, ...] = ("rank", "n_state", "n_heads", "depth", "expansion", "dim")
_STATE_STEP = 8  # kernels have tiles for multiples of this
_AROUND = (0.25, 0.5, 1, 2, 4)

Count = Callable[[int], int | None]
"""Number of parameters at the n-th value of the fitted size; None if the cell refuses it."""


@dataclass(frozen=True)
class Shaped:
    """A model at several sizes.

    Args:
        config: The model, without an expected count.
        sizes: Its values of the sizes that were searched.
        params: Its parameters, counted from the whole model.
        target: The number that was wanted.
        change: Sum over the sizes of |log2(size / the model's own size)|.
    """

    config: ModelConfig
    sizes: Mapping[Size, int | float]
    params: int
    target: int
    change: float

    @property
    def error(self) -> float:
        """Difference of the count from the target, as a signed fraction of the target."""
        return (self.params - self.target) / self.target

    @property
    def rank(self) -> tuple[float, float, float]:
        """Sort key of the candidates; see :data:`RULE`. Among equals the smaller model wins."""
        off = abs(self.error)
        return (0.0 if off <= NEAR else off, self.change, off)


@dataclass(frozen=True)
class Shapes:
    """The answer of :func:`search`.

    Args:
        over: The sizes that were searched.
        best: The best configurations, best first; at least one.
        reached: Whether the target lies between two counts of the search.
    """

    over: Sequence[Size]
    best: Sequence[Shaped]
    reached: bool


def search(config: ModelConfig, target: int, over: Sequence[Size], backend: str = "auto") -> Shapes:
    """Return the best configurations of several sizes, as ranked by :data:`RULE`.

    Args:
        config: The model, with its own shape.
        target: Wanted number of parameters.
        over: Two or more of ``SIZES`` that the cell has.
        backend: As ``kernels.backend``.

    Raises:
        UserError: the cell refuses every combination; the message gives the last one's reason.
    """
    fitted = next(size for size in _FINEST if size in over)
    others: list[Size] = sorted((s for s in over if s != fitted), key=lambda s: s == "dim")
    count = _counter(config, backend)
    found = [
        (sizes | {fitted: size}, params)
        for sizes, size, params in _fits(config, target, others, fitted, count)
    ]
    if not found:
        last = {size: SIZES[size][-1] for size in over}
        count_params(resized_to(config, last), backend)
        raise AssertionError(f"{config.name} takes no {over}, and its largest can be built")
    params = [one for _, one in found]
    candidates = sorted(
        (_candidate(config, sizes, one, target, over) for sizes, one in found),
        key=lambda candidate: (candidate.rank, candidate.params),
    )
    near = [candidate for candidate in candidates if abs(candidate.error) <= FAR]
    best = near[:BEST] or candidates[:1]
    for candidate in best:
        whole = count_params(candidate.config, backend)
        assert whole == candidate.params, f"{candidate.sizes}: {whole} parameters"
    return Shapes(over, best, min(params) <= target <= max(params))


def _fits(
    config: ModelConfig,
    target: int,
    others: Sequence[Size],
    fitted: Size,
    count: Callable[[Mapping[Size, int]], int | None],
) -> Iterator[tuple[dict[Size, int], int, int]]:
    """Yield the fitted size and its count for every combination of the other sizes.

    If dim is among the other sizes, it runs in the innermost loop and only up to the target.
    """
    *outer, last = others
    for values in itertools.product(*(_values(config, size) for size in outer)):
        for value in _values(config, last):
            sizes = dict(zip(others, (*values, value), strict=True))

            def at(place: int, sizes: dict[Size, int] = sizes) -> int | None:
                size = SIZES[fitted][place]
                if fitted == "n_state" and size % _STATE_STEP:
                    return None
                return count(sizes | {fitted: size})

            place = fit(at, target, len(SIZES[fitted]))
            if place is None:
                continue
            params = at(place)
            assert params is not None
            yield sizes, SIZES[fitted][place], params
            if last == "dim" and params > target and _smallest(at, place):
                break


def _smallest(count: Count, place: int) -> bool:
    """Return whether the cell takes no smaller value."""
    return all(count(lower) is None for lower in range(place))


def _values(config: ModelConfig, size: Size) -> Sequence[int]:
    """Return a size's values: all for dim and expansion, others around the model's own."""
    if size in ("dim", "expansion"):
        return SIZES[size]
    own = _own(config, size)
    if size == "depth":
        return range(max(1, own // 2), min(2 * own, SIZES[size][-1]) + 1)
    # 0 stands for the cell's own rule for a size, so it is no value to start from.
    around = {round(own * factor) for factor in _AROUND} if own else set(SIZES[size][::16])
    return sorted(around & set(SIZES[size])) or SIZES[size]


def _own(config: ModelConfig, size: Size) -> int:
    if size == "dim":
        return config.dim
    if size == "depth":
        return config.depth
    value = config.options[size]
    assert isinstance(value, int | float)
    return round(value / value_of(size, 1))


def _counter(config: ModelConfig, backend: str) -> Callable[[Mapping[Size, int]], int | None]:
    """Return the count of a combination of sizes, computed from one and two layers."""

    @cache
    def built(sizes: frozenset[tuple[Size, int]]) -> tuple[int, int] | None:
        try:
            models = (resized_to(config, {**dict(sizes), "depth": n}) for n in (1, 2))
            one, two = (count_params(model, backend) for model in models)
        except UserError:
            return None
        return one, two - one

    def count(sizes: Mapping[Size, int]) -> int | None:
        depth = sizes.get("depth", config.depth)
        layer = built(frozenset((name, n) for name, n in sizes.items() if name != "depth"))
        return None if layer is None else layer[0] + (depth - 1) * layer[1]

    return count


def _candidate(
    config: ModelConfig,
    sizes: Mapping[Size, int],
    params: int,
    target: int,
    over: Sequence[Size],
) -> Shaped:
    change = 0.0
    for size, value in sizes.items():
        # 0 stands for the cell's own rule, so a distance from it is not defined.
        if own := _own(config, size):
            change += abs(math.log2(value / own))
    values = {size: value_of(size, sizes[size]) for size in over}
    return Shaped(resized_to(config, sizes), values, params, target, change)


def fit(count: Count, target: int, places: int) -> int | None:
    """Return the place whose count is nearest to the target; of two, the smaller one.

    Counts grow nearly evenly from place to place, so linear interpolation says where to look.

    Args:
        count: Parameters at a place; None where a cell refuses it.
        target: Wanted number of parameters.
        places: Number of places.

    Returns:
        The place, or None if every one is refused.
    """
    low = _taken(count, range(places))
    high = _taken(count, range(places - 1, -1, -1))
    if low is None or high is None:
        return None
    while True:
        below, above = count(low), count(high)
        assert below is not None
        assert above is not None
        if below >= target or low == high:
            return low
        if above <= target:
            return high
        guess = low + (target - below) * (high - low) // (above - below)
        guess = max(low + 1, min(guess, high - 1))
        middle = _taken(count, range(guess, high))
        if middle is None:
            middle = _taken(count, range(guess - 1, low, -1))
        if middle is None:
            return low if target - below <= above - target else high
        params = count(middle)
        assert params is not None
        low, high = (middle, high) if params <= target else (low, middle)


def _taken(count: Count, places: Sequence[int]) -> int | None:
    return next((place for place in places if count(place) is not None), None)
