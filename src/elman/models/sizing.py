"""Finds the size at which a model comes nearest to a wanted number of parameters.

Counts come from models of one and of two layers on the meta device. All layers are equal, so the
count is linear in depth. The answer and its neighbours are then built with all layers. There is no
formula here, so the search is right for every present and future cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from elman.base.errors import UserError
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.cells.declaration import Value
from elman.sections.model import DIM_ALIGNMENT, ModelConfig
from elman.sections.modes import Size

SIZES: dict[Size, range] = {
    "dim": range(DIM_ALIGNMENT, 16384 + 1, DIM_ALIGNMENT),
    "depth": range(1, 128 + 1),
    "n_heads": range(1, 2048 + 1),
    "n_state": range(1, 1024 + 1),
    "rank": range(8, 4096 + 1, 8),
    "expansion": range(1, 16 + 1),
}
"""Search ranges, wide enough for every published model (largest: dim 7680, depth 50, 2000 heads and
state 256). An expansion is counted in quarters; a rank is at most dim."""
_QUARTER = 0.25

Count = Callable[[int], int | None]
"""Number of parameters at the n-th size; None if the cell refuses that size."""


@dataclass(frozen=True)
class Sized:
    """A model at one size.

    Args:
        config: The model, without an expected count.
        size: Its value of the size that was searched.
        params: Its parameters, counted from the whole model.
        target: The number that was wanted.
    """

    config: ModelConfig
    size: int | float
    params: int
    target: int

    @property
    def error(self) -> float:
        """Difference of the count from the target, as a signed fraction of the target."""
        return (self.params - self.target) / self.target


@dataclass(frozen=True)
class Solution:
    """The answer of :func:`solve`.

    Args:
        over: The size that was searched.
        nearest: The size whose count is nearest to the target; of two, the smaller.
        below: The next smaller size that the cell takes, or None if there is none.
        above: The next larger size within the search, or None if there is none.
    """

    over: Size
    nearest: Sized
    below: Sized | None
    above: Sized | None

    @property
    def reached(self) -> bool:
        """Whether the target lies between two sizes of the search."""
        too_small = self.below is None and self.nearest.error > 0
        too_large = self.above is None and self.nearest.error < 0
        return not (too_small or too_large)


def solve(config: ModelConfig, target: int, over: Size = "dim", backend: str = "auto") -> Solution:
    """Return the size whose instantiated parameter count is nearest to ``target``.

    Counts grow with every size that can be searched. Sizes that the cell or its backend refuses are
    left out.

    Args:
        config: The model; its own value of ``over`` does not matter.
        target: Wanted number of parameters.
        over: The size to find: one of ``SIZES`` that the cell has.
        backend: As ``kernels.backend``.

    Raises:
        UserError: the cell refuses every size; the message gives the largest one's reason.
    """
    sizes = SIZES[over]
    count = _counter(config, over, backend)
    at_least = _first_at_least(count, target, len(sizes))
    lower = _next(count, range(at_least - 1, -1, -1))
    upper = at_least if at_least < len(sizes) else None
    if lower is None and upper is None:
        count_params(resized_to(config, {over: sizes[-1]}), backend)
        raise AssertionError(f"{config.name} takes no {over}, and its largest can be built")
    best = _nearer(count, target, lower, upper)
    places = (
        _next(count, range(best - 1, -1, -1)),
        best,
        _next(count, range(best + 1, len(sizes))),
    )
    below, nearest, above = (
        None if place is None else _whole(config, over, sizes[place], target, count(place), backend)
        for place in places
    )
    assert nearest is not None
    return Solution(over, nearest, below, above)


def _counter(config: ModelConfig, over: Size, backend: str) -> Count:
    """Return the count at the n-th size of the search; each count is cached."""

    @cache
    def built(size: int | None, layers: int) -> int:
        resized = config if size is None else resized_to(config, {over: size})
        return count_params(resized_to(resized, {"depth": layers}), backend)

    @cache
    def count(place: int) -> int | None:
        size = SIZES[over][place]
        # The counts of one and two layers give the count of every depth.
        of_layer, depth = (None, size) if over == "depth" else (size, config.depth)
        try:
            one, two = (built(of_layer, layers) for layers in (1, 2))
        except UserError:
            return None
        return one + (depth - 1) * (two - one)

    return count


def resized_to(config: ModelConfig, sizes: Mapping[Size, int]) -> ModelConfig:
    """Return the model with other sizes, each as ``SIZES`` counts it.

    Raises:
        UserError: the cell refuses them.
    """
    changed: dict[str, object] = {"expected_params": None}
    options: dict[str, Value] = dict(config.options)
    for over, size in sizes.items():
        if over in ("dim", "depth"):
            changed[over] = size
        else:
            options[over] = value_of(over, size)
    resized = config.model_copy(update=changed)
    checked = registry.cell(config.cell).parse_options(resized.dim, options)
    if (rank := sizes.get("rank", 0)) > resized.dim:
        raise UserError(
            f"model.rank={rank}: larger than model.dim={resized.dim}; use a smaller one"
        )
    return resized.model_copy(update={"options": checked})


def value_of(over: Size, size: int) -> int | float:
    """Return the model's value of one of ``SIZES``."""
    return size * _QUARTER if over == "expansion" else size


def count_params(config: ModelConfig, backend: str) -> int:
    return build_model(config, backend=backend, device="meta").num_params()


def _first_at_least(count: Count, target: int, sizes: int) -> int:
    """Return the first size with ``target`` parameters or more, or ``sizes`` if there is none."""
    low, high, found = 0, sizes, sizes
    while low < high:
        middle = (low + high) // 2
        place = _next(count, range(middle, high))
        params = None if place is None else count(place)
        if place is None or params is None:
            high = middle  # every size from here on is refused
        elif params < target:
            low = place + 1
        else:
            high, found = middle, place
    return found


def _next(count: Count, places: Sequence[int]) -> int | None:
    """Return the first of ``places`` whose size the cell accepts."""
    return next((place for place in places if count(place) is not None), None)


def _nearer(count: Count, target: int, lower: int | None, upper: int | None) -> int:
    """Return the place of the nearer count; if equal, the smaller place."""
    places = [place for place in (lower, upper) if place is not None]

    def distance(place: int) -> int:
        params = count(place)
        assert params is not None
        return abs(params - target)

    return min(places, key=distance)


def _whole(
    config: ModelConfig, over: Size, size: int, target: int, expected: int | None, backend: str
) -> Sized:
    """Build a model with all its layers and count its parameters."""
    resized = resized_to(config, {over: size})
    params = count_params(resized, backend)
    assert params == expected, f"{over}={size} has {params} parameters, not {expected}"
    return Sized(resized, value_of(over, size), params, target)
