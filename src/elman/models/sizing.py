"""Finds the size at which a model comes nearest to a wanted number of parameters.

All values of the size are counted (:mod:`elman.models.counts`), because a count may fall where a
size grows: more heads of sLSTM have smaller matrices. The answer and its neighbours are then built
with all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.models.counts import (
    Counts,
    Number,
    Seen,
    count_params,
    nearest_of,
    own_size,
    resized_to,
    scanned,
    values_of,
)
from elman.sections.model import ModelConfig
from elman.sections.modes import Size


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
    size: Number
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
    target: int,
    over: Size = "dim",
    backend: str = "auto",
    seen: Seen = lambda count: None,
) -> Solution:
    """Return the size whose instantiated parameter count is nearest to ``target``.

    Sizes that the cell or its backend refuses are left out.

    Args:
        config: The model. Its own value of ``over`` is searched beside those of ``SIZES``.
        target: Wanted number of parameters.
        over: The size to find: one of ``SIZES`` that the cell has.
        backend: As ``kernels.backend``.
        seen: Told the number of counts so far.

    Raises:
        UserError: the cell refuses every size; the message gives the largest one's reason.
    """
    values, counts = values_of(config, over), Counts(config, backend, seen)
    found = scanned(lambda value: counts.at({over: value}), values, target)
    if not found:
        count_params(resized_to(config, {over: values[-1]}), backend)
        raise AssertionError(f"{config.name} takes no {over}, and its largest can be built")
    best = nearest_of(found, target, own_size(config, over))

    def whole(size: Number | None) -> Sized | None:
        return None if size is None else _whole(config, over, size, target, found[size], backend)

    nearest = whole(best)
    assert nearest is not None
    below, above = _neighbours(found, best)
    reached = min(found.values()) <= target <= max(found.values())
    return Solution(over, nearest, whole(below), whole(above), reached)


def _neighbours(found: dict[Number, int], best: Number) -> tuple[Number | None, Number | None]:
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


def _whole(
    config: ModelConfig, over: Size, size: Number, target: int, expected: int, backend: str
) -> Sized:
    """Build a model with all its layers and count its parameters."""
    resized = resized_to(config, {over: size})
    params = count_params(resized, backend)
    assert params == expected, f"{over}={size} has {params} parameters, not {expected}"
    return Sized(resized, size, params, target)
