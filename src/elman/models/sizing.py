"""Finds the size at which a model's count comes nearest to a target.

All values of the size are counted (:mod:`elman.models.counts`), because a count may fall where a
size grows: more heads of sLSTM have smaller matrices. The answer and its neighbors are then built
with all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.models.counts import (
    CountOf,
    Counts,
    Number,
    Seen,
    nearest_of,
    own_size,
    resized_to,
    scanned,
    values_of,
)
from elman.sections.model import ModelConfig
from elman.sections.solve import Size


@dataclass(frozen=True)
class Sized:
    """A model at one size.

    Args:
        config: The model, without an expected count.
        size: Its value of the size that was searched.
        count: Its count, of the whole model.
        target: The count to come near to.
    """

    config: ModelConfig
    size: Number
    count: float
    target: float

    @property
    def error(self) -> float:
        """Difference of the count from the target, as a signed fraction of the target."""
        return (self.count - self.target) / self.target


@dataclass(frozen=True)
class Solution:
    """The answer of :func:`solve`.

    Args:
        over: The size that was searched.
        nearest: The size whose count is nearest to the target. Of several the model's own is taken,
            else the smallest.
        below: The next smaller size that the cell takes, or None if there is none. Where the
            answer is 0, a rule of the cell: the largest size with a smaller count.
        above: The next larger size within the search, or None if there is none; of 0 likewise.
        reached: Whether the target lies between the smallest and the largest count of the search.
    """

    over: Size
    nearest: Sized
    below: Sized | None
    above: Sized | None
    reached: bool


def solve(
    config: ModelConfig,
    count: CountOf,
    target: float,
    over: Size = "dim",
    seen: Seen = lambda count: None,
) -> Solution:
    """Return the size whose count is nearest to ``target``.

    Sizes that the cell or its backend refuses are left out.

    Args:
        config: The model. Its own value of ``over`` is searched beside those of ``SIZES``.
        count: Counts a model.
        target: The count to come near to.
        over: The size to find: one of ``SIZES`` that the cell has.
        seen: Told the number of counts so far.

    Raises:
        UserError: the cell refuses every size; the message gives the largest one's reason.
    """
    values, counts = values_of(config, over), Counts(config, count, seen)
    found = scanned(lambda value: counts.at({over: value}), values, target)
    if not found:
        counts.refuse({over: values[-1]})
    best = nearest_of(found, target, own_size(config, over))

    def whole(size: Number) -> Sized:
        resized = resized_to(config, {over: size})
        return Sized(resized, size, counts.whole(resized, found[size]), target)

    below, above = (None if size is None else whole(size) for size in _neighbors(found, best))
    reached = min(found.values()) <= target <= max(found.values())
    return Solution(over, whole(best), below, above, reached)


def _neighbors(found: dict[Number, float], best: Number) -> tuple[Number | None, Number | None]:
    """Return the sizes beside the answer, 0 left out; beside 0, those of the counts beside its."""
    named = [value for value in found if value]
    if best:
        below = [value for value in named if value < best]
        above = [value for value in named if value > best]
    else:
        below = [value for value in named if found[value] < found[best]]
        above = [value for value in named if found[value] > found[best]]
        below.sort(key=found.__getitem__)
        above.sort(key=found.__getitem__)
    return _end(below, -1), _end(above, 0)


def _end(values: Sequence[Number], place: int) -> Number | None:
    return values[place] if values else None
