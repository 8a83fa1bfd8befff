"""Sizes for the checks of a cell: one step, odd lengths, several segments, every state size.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from elman.base.errors import UserError
from elman.models.build import layer_class
from elman.models.cells.declaration import Cell, Value
from elman.training.memory.meta_walk import MetaWalk

STATE_SIZES = (16, 20, 28, 32, 64, 256)
_SIZE = "n_state"
_LARGE = 128
# Widths for cells whose state is as wide as the layer: odd, and around the widths of vectors.
_WIDTHS = (17, 20, 28, 64, 256)
# Widths to try, in this order: some cells need a width that their heads divide.
_SMALL_DIMS = (24, 32, 64, 128, 256)
# Longer than two segments of the usual checkpoint intervals, and not a multiple of any.
_LONG = 67
_ODD = 37
# Largest product of state elements, rows and steps in a check: half a second of the reference.
_BUDGET = 2**21
_LENGTHS = ((2, _LONG), (1, _LONG), (1, 35), (1, 19))
# Most rows and steps of a check at the sizes of training; both are multiples of 16.
_MOST_ROWS, _MOST_STEPS = 16, 512
# A layer with more parameters is not checked: its fp64 copies would take too much memory.
_MOST_PARAMETERS = 2**24


@dataclass(frozen=True)
class Shape:
    """One check: the sizes of a layer and of its input.

    Args:
        name: What is special about it.
        batch: B.
        steps: T.
        dim: Model width.
        options: The cell's options that differ from their defaults.
        initial: Whether a first state is given, whose gradient is checked, too.
        strided: Whether the input is a view with gaps.
        resets: Whether some rows begin a document at some steps.
    """

    name: str
    batch: int
    steps: int
    dim: int
    options: Mapping[str, Value] = field(default_factory=dict)
    initial: bool = True
    strided: bool = False
    resets: bool = False

    def describe(self, cell: Cell) -> str:
        """Return the sizes in one line, for people."""
        sizes = [f"B={self.batch}", f"T={self.steps}", f"dim={self.dim}"]
        for name, short in ((_SIZE, "n"), ("n_heads", "h")):
            if name in cell.options:
                sizes.append(f"{short}={self.options.get(name, cell.options[name].default)}")
        return " ".join([*sizes, *(["resets"] if self.resets else [])])


@dataclass(frozen=True)
class TrainedSizes:
    """Sizes of a training step.

    Attributes:
        batch_size: Rows.
        chunk_size: Steps.
        carried: Whether states are carried from step to step.
    """

    batch_size: int
    chunk_size: int
    carried: bool


def shapes_for(
    cell: Cell, dim: int, options: Mapping[str, Value], *, quick: bool
) -> tuple[list[Shape], list[str]]:
    """Return the checks of a cell with a model's own options, and notes on what was left out.

    Args:
        cell: The cell.
        dim: The model's width. Only one check has this width; the others are small.
        options: All of the model's options, including those at their defaults.
        quick: Only two checks: one step, and a few segments with a first state. A transformer has
            a third: without keys from before, other kernels run.
    """
    own = {name: v for name, v in options.items() if v != cell.options[name].default}
    small = _small_dim(cell, own, dim)
    batch, long = _fitting(_state_elements(cell, small, own))
    basic = [
        Shape("one step", 2, 1, small, own),
        Shape("segments", batch, long, small, own),
    ]
    beginning = Shape("from nothing", 1, _ODD, small, own, initial=False)
    if quick:
        return ([*basic, beginning] if cell.own_norms else basic), []
    basic += [
        beginning,
        Shape("strided input", 3, _ODD, small, own, strided=True),
    ]
    if not cell.no_resets(options) and _takes_resets(cell):
        basic.append(Shape("resets", 3, _ODD, small, own, resets=True))
    notes: list[str] = []
    sized = list(_sized(cell, own, small, notes))
    return [*basic, *sized, *_own_size(cell, dim, own, notes)], notes


def shape_as_trained(
    cell: Cell,
    dim: int,
    options: Mapping[str, Value],
    sizes: TrainedSizes,
) -> Shape:
    """Return the shape of a layer in a training step of this model."""
    own = {name: v for name, v in options.items() if v != cell.options[name].default}
    return Shape("as trained", sizes.batch_size, sizes.chunk_size, dim, own, initial=sizes.carried)


def few_rows(shape: Shape) -> Shape:
    """Return ``shape`` with few enough rows and steps for fp64.

    Triton compiles different kernels for multiples of 16 and for other sizes. So a multiple of 16
    stays one, and another size stays another.
    """
    batch, steps = _at_most(shape.batch, _MOST_ROWS), _at_most(shape.steps, _MOST_STEPS)
    return replace(shape, batch=batch, steps=steps)


def _at_most(size: int, most: int) -> int:
    """Return ``size`` limited to ``most``; a multiple of 16 stays one, another size does not."""
    return min(size, most if size % 16 == 0 else most - 1)


def _small_dim(cell: Cell, options: Mapping[str, Value], dim: int) -> int:
    """Return the smallest width that the options allow; the model's own width is one."""
    return next(d for d in (*_SMALL_DIMS, dim) if d == dim or _impossible(cell, d, options) is None)


def _impossible(cell: Cell, dim: int, options: Mapping[str, Value]) -> str | None:
    """Return why a layer cannot have these sizes, or None."""
    try:
        cell.parse_options(dim, options)
    except UserError as error:
        return str(error)
    return None


def _no_kernel(cell: Cell, own: Mapping[str, Value], options: Mapping[str, Value]) -> str:
    """Return why no kernel has these sizes where one has the model's own; empty if one does."""
    defaults = {name: option.default for name, option in cell.options.items()}
    if cell.limit({**defaults, **own}):
        return ""
    return cell.limit({**defaults, **options})


def _takes_resets(cell: Cell) -> bool:
    """Return whether the layer's forward pass has the argument; a user's own may not."""
    return "resets_bt" in inspect.signature(layer_class(cell).forward).parameters


def _sized(cell: Cell, own: Mapping[str, Value], small: int, notes: list[str]) -> Iterator[Shape]:
    """Return a check for every state size, or for every width if the state has that width."""
    if _SIZE not in cell.options:
        for width in _WIDTHS:
            if (problem := _impossible(cell, width, own)) is None:
                yield _fitted(cell, f"width {width}", width, own)
            else:
                notes.append(f"width {width} left out: {problem}")
        return
    for size in STATE_SIZES:
        # Few heads are enough: heads do not depend on each other.
        heads = {"n_heads": 1 if size > _LARGE else 2} if "n_heads" in cell.options else {}
        options = {**own, _SIZE: size, **heads}
        problem = _impossible(cell, small, options) or _no_kernel(cell, own, options)
        if not problem:
            yield _fitted(cell, f"n_state {size}", small, options)
        else:
            notes.append(f"n_state {size} left out: {problem}")


def _fitted(cell: Cell, name: str, dim: int, options: Mapping[str, Value]) -> Shape:
    batch, steps = _fitting(_state_elements(cell, dim, options))
    return Shape(name, batch, steps, dim, options)


def _own_size(cell: Cell, dim: int, own: Mapping[str, Value], notes: list[str]) -> Sequence[Shape]:
    """Return the check at the model's own size; none if it would take minutes."""
    params = sum(p.numel() for p in _on_meta(cell, dim, own).parameters())
    batch, steps = _fitting(_state_elements(cell, dim, own))
    if params > _MOST_PARAMETERS:
        notes.append(f"own size left out: {params:,} parameters a layer")
        return []
    return [Shape("own size", batch, min(steps, 19), dim, own)]


def _fitting(elements: int) -> tuple[int, int]:
    """Return rows and steps of a check whose state has ``elements`` elements per row."""
    fits = (size for size in _LENGTHS if size[0] * size[1] * elements <= _BUDGET)
    return next(fits, _LENGTHS[-1])


def _state_elements(cell: Cell, dim: int, options: Mapping[str, Value]) -> int:
    """Return the number of elements in the state of one row."""
    x_btd = torch.empty(1, 1, dim, device="meta")
    with torch.no_grad(), MetaWalk():
        _, state = _on_meta(cell, dim, options)(x_btd)
    return sum(part.numel() for part in state.values())


def _on_meta(cell: Cell, dim: int, options: Mapping[str, Value]) -> torch.nn.Module:
    return layer_class(cell)(dim, **options, device="meta")
