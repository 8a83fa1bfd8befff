"""Searches several sizes at once for a model whose count is near to a target.

The finest size is fitted; the others run over their possible values. Every count comes from a whole
model (:mod:`elman.models.counts`). Where the count rises with the fitted size,
the fit interpolates; where it may fall, all values are counted.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from elman.models.counts import (
    SIZES,
    CountOf,
    Counts,
    Number,
    Seen,
    grows,
    own_size,
    resized_to,
    scanned,
    values_of,
)
from elman.sections.model import ModelConfig
from elman.sections.solve import Size

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

Count = Callable[[int], float | None]
"""The count at the n-th value of the fitted size; None if the cell refuses it."""
Sizes = dict[Size, Number]


@dataclass(frozen=True)
class Shaped:
    """A model at several sizes.

    Args:
        config: The model, without an expected count.
        sizes: Its values of the sizes that were searched.
        count: Its count, of the whole model.
        target: The count to come near to.
        change: Sum over the sizes of |log2(size / the model's own size)|, and 1 for a size whose
            own value is a rule of the cell.
    """

    config: ModelConfig
    sizes: Mapping[Size, Number]
    count: float
    target: float
    change: float

    @property
    def error(self) -> float:
        """Difference of the count from the target, as a signed fraction of the target."""
        return (self.count - self.target) / self.target

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
        reached: Whether the best one is within :data:`FAR` of the target.
    """

    over: Sequence[Size]
    best: Sequence[Shaped]
    reached: bool


def search(
    config: ModelConfig,
    count: CountOf,
    target: float,
    over: Sequence[Size],
    seen: Seen = lambda count: None,
) -> Shapes:
    """Return the best configurations of several sizes, as ranked by :data:`RULE`.

    Args:
        config: The model, with its own shape.
        count: Counts a model.
        target: The count to come near to.
        over: Two or more of ``SIZES`` that the cell has.
        seen: Told the number of counts so far.

    Raises:
        UserError: the cell refuses every combination; the message gives the last one's reason.
    """
    counts = Counts(config, count, seen)
    found = list(_Search(config, target, over, counts).fits())
    if not found:
        counts.refuse({size: SIZES[size][-1] for size in over})
    candidates = sorted(
        (_candidate(config, sizes, one, target, over) for sizes, one in found),
        key=lambda candidate: (candidate.rank, candidate.count),
    )
    near = [candidate for candidate in candidates if abs(candidate.error) <= FAR]
    best = near[:BEST] or candidates[:1]
    for candidate in best:
        counts.whole(candidate.config, candidate.count)
    return Shapes(over, best, bool(near))


class _Search:
    """The combinations of the other sizes, and the fit of the finest one in each."""

    def __init__(
        self, config: ModelConfig, target: float, over: Sequence[Size], counts: Counts
    ) -> None:
        self._config, self._target, self._counts = config, target, counts
        self._fitted = next(size for size in _FINEST if size in over)
        others: list[Size] = sorted(
            (s for s in over if s != self._fitted), key=lambda s: s == "dim"
        )
        self._others = others
        self._own: Sizes = {size: own_size(config, size) for size in others}
        self._values = self._fitted_values()
        self._accepted: dict[frozenset[tuple[Size, Number]], list[Number]] = {}
        own: Sizes = {size: own_size(config, size) for size in self._others}
        # A dip at the model's own shape is one at others, too; a dip that the interpolation meets
        # elsewhere is seen there.
        self._rises = grows(scanned(self._counter(own), self._values, target))

    def fits(self) -> Iterator[tuple[Sizes, float]]:
        """Yield the sizes and the count of the best fit for each combination of the others.

        If dim is among the other sizes, it runs in the innermost loop and only near the target.
        """
        *outer, last = self._others
        ranges = {size: _values(self._config, size, len(self._others)) for size in self._others}
        inner = ranges[last]
        for values in itertools.product(*(ranges[size] for size in outer)):
            before: Sizes = dict(zip(outer, values, strict=True))
            start = self._first_large_enough(before, inner) if last == "dim" else 0
            for value in inner[start:]:
                sizes = before | {last: value}
                if (fitted := self._fit(sizes)) is None:
                    continue
                best, count, least = fitted
                yield sizes | {self._fitted: best}, count
                if last == "dim" and least > self._target * (1 if self._rises else 2):
                    break

    def _fitted_values(self) -> list[Number]:
        values, own = values_of(self._config, self._fitted), own_size(self._config, self._fitted)
        if self._fitted != "n_state":
            return values
        return [value for value in values if value == own or value % _STATE_STEP == 0]

    def _counter(self, sizes: Sizes) -> Callable[[Number], float | None]:
        return lambda value: self._counts.at(sizes | {self._fitted: value})

    def _first_large_enough(self, before: Sizes, dims: Sequence[Number]) -> int:
        """Return the place of the dim before the first that can have as large a count."""
        if not self._rises:
            return 0

        def most(place: int) -> float:
            """Return the largest count up to the n-th dim; dims that are refused have none."""
            for dim in reversed(dims[: place + 1]):
                count = self._counter(before | {"dim": dim})
                if found := next((n for value in reversed(self._values) if (n := count(value))), 0):
                    return found
            return 0.0

        enough = (1 - FAR) * self._target
        return max(0, bisect_left(range(len(dims)), enough, key=most) - 1)

    def _fit(self, sizes: Sizes) -> tuple[Number, float, float] | None:
        """Return the best fitted size, its count and the smallest count; None if none is taken."""
        count, target = self._counter(sizes), self._target
        own = own_size(self._config, self._fitted)
        named = [value for value in self._values if value]
        if self._rises:
            place = fit(lambda place: count(named[place]), target, len(named))
            low = next((n for value in named if (n := count(value))), None)
            found = {} if place is None else {named[place]: count(named[place])}
            found |= {own: count(own)}
            taken = {value: n for value, n in found.items() if n is not None}
        else:
            taken = scanned(count, self._taken(sizes), target)
            low = min(taken.values(), default=None)
        if not taken or low is None:
            return None
        best = min(taken, key=lambda value: self._by_the_rule(value, taken[value], own))
        return best, taken[best], low

    def _taken(self, sizes: Sizes) -> list[Number]:
        """Return the fitted values that the cell takes beside these sizes, whatever the depth."""
        key = frozenset((size, value) for size, value in sizes.items() if size != "depth")
        if key not in self._accepted:
            count = self._counter(sizes)
            self._accepted[key] = [value for value in self._values if count(value) is not None]
        return self._accepted[key]

    def _by_the_rule(self, value: Number, count: float, own: Number) -> tuple[float, ...]:
        """Return the sort key of one fitted value among others, as :data:`RULE` says."""
        off = abs(count - self._target) / self._target
        return (0.0 if off <= NEAR else off, _change(own, value), off, value != own, value)


def _values(config: ModelConfig, size: Size, others: int) -> Sequence[Number]:
    """Return a size's values: all for dim, others around the model's own.

    For an expansion beside one size alone they are all, too.
    """
    own = own_size(config, size)
    if size == "dim" or (size == "expansion" and others == 1):
        return values_of(config, size)
    if size == "expansion":
        near = (value for value in SIZES[size] if _AROUND[0] <= value / own <= _AROUND[-1])
        return sorted({*near, own})
    if size == "depth":
        return range(max(1, int(own) // 2), max(int(own), min(2 * int(own), 128)) + 1)
    # 0 stands for the cell's own rule for a size, so it is no value to start from.
    around = {round(own * factor) for factor in _AROUND} if own else set(SIZES[size][::16])
    return sorted({*(around & set(SIZES[size])), own})


def _candidate(
    config: ModelConfig, sizes: Sizes, count: float, target: float, over: Sequence[Size]
) -> Shaped:
    change = sum(_change(own_size(config, size), value) for size, value in sizes.items())
    values = {size: sizes[size] for size in over}
    return Shaped(resized_to(config, sizes), values, count, target, change)


def _change(own: Number, value: Number) -> float:
    """Return the distance from the model's own value; to leave a cell's own rule is a doubling."""
    if value == own:
        return 0.0
    return abs(math.log2(value / own)) if own and value else 1.0


def fit(count: Count, target: float, places: int) -> int | None:
    """Return the place whose count is nearest to the target; of two, the smaller one.

    Counts grow nearly evenly from place to place, so linear interpolation says where to look.

    Args:
        count: The count at a place; None where a cell refuses it.
        target: The count to come near to.
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
        guess = low + int((target - below) * (high - low) // (above - below))
        guess = max(low + 1, min(guess, high - 1))
        middle = _taken(count, range(guess, high))
        if middle is None:
            middle = _taken(count, range(guess - 1, low, -1))
        if middle is None:
            return low if target - below <= above - target else high
        between = count(middle)
        assert between is not None
        low, high = (middle, high) if between <= target else (low, middle)


def _taken(count: Count, places: Sequence[int]) -> int | None:
    return next((place for place in places if count(place) is not None), None)
