"""Counts a model at other sizes, exactly: its parameters, or another number of its shape.

A model with one layer of each kind is counted, and for each kind one with two such layers. All
layers of a kind after its first are equal, so the count is linear in their number. There is no
formula here, so a count is right for every present and future cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NoReturn

from elman.base.errors import UserError
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.cells.declaration import Value
from elman.sections.model import DIM_ALIGNMENT, ModelConfig
from elman.sections.solve import Size

Number = int | float
SIZES: dict[Size, Sequence[Number]] = {
    "dim": range(DIM_ALIGNMENT, 16384 + 1, DIM_ALIGNMENT),
    "depth": range(1, 128 + 1),
    "n_heads": range(1, 2048 + 1),
    "n_state": range(1, 1024 + 1),
    "rank": range(8, 4096 + 1, 8),
    "expansion": tuple(quarters / 4 for quarters in range(1, 64 + 1)),
}
"""Search ranges, wide enough for every published model (largest: dim 7680, depth 50, 2000 heads and
state 256). The model's own value of a size is searched, too; a rank is at most dim."""
_TWICE = 2
_FIRST = 64

_ROUNDING = 1e-12  # it tells whole numbers up to 1e12 apart

CountOf = Callable[[ModelConfig], float]
"""Returns the number of a model that has a target, and raises UserError if the model cannot be
built. It is linear in depth."""
Seen = Callable[[int], None]
"""Called with the number of counts so far."""


def own_size(config: ModelConfig, over: Size) -> Number:
    """Return the model's own value of a size; 0 stands for the cell's own rule."""
    if over == "dim":
        return config.dim
    if over == "depth":
        return config.depth
    value = config.options[over]
    assert isinstance(value, int | float)
    return value


def values_of(config: ModelConfig, over: Size) -> list[Number]:
    """Return the values of a size that are searched, in order: ``SIZES`` and the model's own."""
    return sorted({*SIZES[over], own_size(config, over)})


def resized_to(config: ModelConfig, sizes: Mapping[Size, Number]) -> ModelConfig:
    """Return the model with other sizes.

    Raises:
        UserError: the cell refuses them.
    """
    changed: dict[str, object] = {"expected_params": None}
    options: dict[str, Value] = dict(config.options)
    for over, size in sizes.items():
        if over in ("dim", "depth"):
            changed[over] = size
        else:
            options[over] = size
    resized = config.model_copy(update=changed)
    checked = registry.cell(config.cell).parse_options(resized.dim, options)
    resized = resized.model_copy(update={"options": checked})
    for part in resized.parts():
        registry.cell(part.cell).parse_options(part.dim, part.options)
    if (rank := sizes.get("rank", 0)) > resized.dim:
        raise UserError(
            f"model.rank={rank}: larger than model.dim={resized.dim}; use a smaller one"
        )
    return resized


def count_params(config: ModelConfig, backend: str = "auto") -> int:
    """Return the parameters of the whole model, built without storage."""
    return build_model(config, backend=backend, device="meta").num_params()


class Counts:
    """The counts of a model at any sizes; every one is made once.

    Args:
        config: The model, with its own shape.
        count: Counts a model.
        seen: Told about each new count.
    """

    def __init__(self, config: ModelConfig, count: CountOf, seen: Seen) -> None:
        self._config, self._count, self._seen = config, count, seen
        self._layers: dict[object, list[float] | None] = {}
        self._numbers: dict[int, list[int]] = {}

    def at(self, sizes: Mapping[Size, Number]) -> float | None:
        """Return the count at these sizes; None if the cell or its backend refuses them."""
        depth = int(sizes.get("depth", self._config.depth))
        if not (numbers := self._more_layers(depth)):
            return None
        key = frozenset((k, size) for k, size in sizes.items() if k != "depth"), len(numbers)
        if key not in self._layers:
            self._layers[key] = self._layer({**sizes, "depth": depth})
            self._seen(len(self._layers))
        if (layers := self._layers[key]) is None:
            return None
        first, *more = layers
        return first + sum(n * each for n, each in zip(numbers, more, strict=True))

    def _more_layers(self, depth: int) -> list[int]:
        """Return how many layers of each kind follow the first; none if the depth does not fit."""
        if depth not in self._numbers:
            try:
                _, more = self._config.model_copy(update={"depth": depth}).few_layers()
                self._numbers[depth] = [number for _, number in more]
            except UserError:
                self._numbers[depth] = []
        return self._numbers[depth]

    def whole(self, config: ModelConfig, expected: float) -> float:
        """Return the count of a model with all its layers; it must be the expected one."""
        count = self._count(config)
        assert math.isclose(count, expected, rel_tol=_ROUNDING), f"{count}, not {expected}"
        return count

    def refuse(self, sizes: Mapping[Size, Number]) -> NoReturn:
        """Raise UserError with the reason why the last sizes are refused; none was taken."""
        self._count(resized_to(self._config, sizes))
        raise AssertionError(f"{self._config.name} takes no {[*sizes]}, and {sizes} can be built")

    def _layer(self, sizes: Mapping[Size, Number]) -> list[float] | None:
        """Return the count with one layer of each kind, and what a further one of each adds."""
        try:
            few, more = resized_to(self._config, sizes).few_layers()
            first = self._count(few)
            return [first, *(self._count(one) - first for one, _ in more)]
        except UserError:
            return None


def scanned(
    count: Callable[[Number], float | None], values: Sequence[Number], target: float
) -> dict[Number, float]:
    """Return the counts of all values that are taken, in the order of the values.

    Counts may rise and fall. Only one thing ends the scan early: the count has risen at each of the
    first 64 values or more, and is more than twice the target. 0, a rule of the cell, stands aside.

    Args:
        count: The count at a value; None where it is refused.
        values: The values of a size, in order.
        target: The count to come near to.
    """
    found: dict[Number, float] = {}
    rises, last = True, 0.0
    for place, value in enumerate(values):
        if (there := count(value)) is None:
            continue
        found[value] = there
        if value:
            rises, last = rises and there > last, there
        if rises and place >= _FIRST and there > _TWICE * target:
            break
    return found


def grows(found: Mapping[Number, float]) -> bool:
    """Return whether the counts rise from value to value; 0, a rule of the cell, stands aside."""
    counts = [count for value, count in found.items() if value]
    return all(one < two for one, two in pairwise(counts))


def nearest_of(found: Mapping[Number, float], target: float, own: Number) -> Number:
    """Return the value whose count is nearest to the target.

    Of several that are equally near the model's own is taken, else the smallest.
    """
    return min(found, key=lambda value: (abs(found[value] - target), value != own, value))
