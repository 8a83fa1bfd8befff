"""Counts the floating-point operations of training: the one definition behind ``train.flops``.

An operation is what a byte costs in the model's equations, whatever computes them. It is counted in
the plain form of the model, on the meta device, where nothing is computed:

- 2 for each multiply-add of a product: of weights (the tied head included), of a convolution's
  taps, of reads and products of a state, of attention;
- 1 for each operation on a number of a state that is a matrix, or slots: its decay, its
  nonlinearity; a write of an outer product is 2.

Not counted: the lookup of an embedding, and work on vectors alone (norms, activations, gates,
states that are vectors), which is below a hundredth of the rest in models of a trained size. The
backward pass counts twice the forward pass; what it recomputes is not counted. Nor are the
optimizer, validation and power iterations.

The plain form of some cells computes many steps at once, with more operations than the equations
have. Such a cell declares those of its recurrence, or attention, as a function of the positions
(``Cell.scan_flops``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.models.state import State
from elman.sections.model import ModelConfig
from elman.sections.training import TrainConfig
from elman.training.memory.meta_walk import MetaWalk

PASSES = 3
"""A forward pass, and a backward pass of twice its work."""
_FEW_LAYERS = 3
# What was counted in this process: a run asks ahead of its GPU, and again for its budget.
_counted: dict[tuple[str, range], float] = {}
# A position so far from the start of its stream that no limit of an attention lies beyond.
_FAR = 1 << 40
# Parts of a state that remember inputs: they are moved, not computed with.
_HISTORIES = ("conv", "past")
_aten = torch.ops.aten
# PyTorch's own operators: what has no formula there is pointwise, or moves numbers.
_COUNTED = ("aten", "prim", "prims")
# Products of a batch: a plain form in chunks computes its recurrence with them.
_BATCHED = frozenset({_aten.bmm, _aten.baddbmm})
# Per number, of what is applied to a state: an in-place form counts like the other one.
_POINTWISE = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "abs", "square", "pow", "sqrt"), 1),
    **dict.fromkeys(("rsqrt", "tanh", "sigmoid", "exp", "log", "softplus", "sum", "mean"), 1),
    **dict.fromkeys(("addcmul", "linalg_vector_norm"), 2),
    "lerp": 3,
}


def flops_per_byte(model: ModelConfig, train: TrainConfig) -> float:
    """Return the operations of training for one predicted byte (of a task: one position).

    It is the mean over the bytes of a row of ``train.chunk_size``. With ``train.tbptt`` a row
    continues states, and an attention sees as many bytes as its limit says, from the first byte.

    Raises:
        UserError: the cell's operations cannot be counted.
    """
    first = _FAR if train.tbptt else 0
    row = range(first, first + train.chunk_size)
    key = (model.model_dump_json(), row)
    if key not in _counted:
        _counted[key] = PASSES * forward_flops(model, row) / len(row)
    return _counted[key]


def forward_flops(config: ModelConfig, row: range) -> float:
    """Return the operations of a forward pass over one row.

    Args:
        config: The model.
        row: The positions of its bytes; the first is 0 unless states are carried.

    Raises:
        UserError: the cell's operations cannot be counted.
    """
    parts = config.parts()
    head = 2 * config.dim * config.vocab_size * len(row)  # every part by itself has one
    cells = [part.cell for part in parts]
    each = [_of_one_cell(part, row, part.cell in cells[:n]) for n, part in enumerate(parts)]
    return sum(each) - (len(parts) - 1) * head


def _of_one_cell(config: ModelConfig, row: range, follows: bool) -> float:
    """Return the operations of one part by itself; whether it follows one of the same cell."""
    cell = registry.cell(config.cell)
    # Layers of a cell differ only in whether they are the first.
    few, layers = _FEW_LAYERS if follows else min(config.depth, _FEW_LAYERS), config.depth
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        each = _of_a_step(config, few)
        if follows or layers > few:
            further = each - _of_a_step(config, few - 1)
            before = 2 * config.dim * config.vocab_size if follows else each - few * further
            each = before + layers * further
    scans = 0.0
    if cell.scan_flops is not None:
        scans = layers * cell.scan_flops(config.dim, config.options, row)
    return each * len(row) + scans


def _of_a_step(config: ModelConfig, layers: int) -> int:
    """Return the operations of one more byte in a row, without those that the cell declares."""
    cell = registry.cell(config.cell)
    cut = config.model_copy(update={"depth": layers, "expected_params": None})
    model = build_model(cut, backend=cell.backends[0], device="meta").eval()
    state_shapes = frozenset(_shapes(_walk(model, 1, _Count(cell.name, frozenset()))))
    # No axis of time may look like one of a state.
    sizes = {size for shape in state_shapes for size in shape}
    steps = next(n for n in itertools.count(2) if not {n, n + 1} & sizes)
    fewer, more = (_Count(cell.name, state_shapes) for _ in range(2))
    _walk(model, steps, fewer)
    _walk(model, steps + 1, more)
    # What does not depend on the length of a row, such as a product of two weights, drops out.
    flops = more.single - fewer.single
    return flops if cell.scan_flops is not None else flops + more.of_state - fewer.of_state


def _walk(model: LanguageModel, steps: int, count: _Count) -> Sequence[State]:
    tokens_bt = torch.empty(1, steps, dtype=torch.uint8, device="meta")
    with count:
        outputs: tuple[Tensor, list[State]] = model(tokens_bt)
    return outputs[1]


def _shapes(states: Iterable[State]) -> Iterable[tuple[int, ...]]:
    """Yield the sizes, in order, of each part of a state that is more than a vector."""
    for state in states:
        for name, part in state.items():
            sizes = _sizes(part)
            if name not in _HISTORIES and len(sizes) > 1:
                yield sizes


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(sorted(size for size in tensor.shape if size != 1))


@cache
def _formulas() -> Mapping[Any, Callable[..., int]]:
    """Return PyTorch's formulas of products, and those that others registered."""
    from torch.utils.flop_counter import flop_registry  # it imports Triton

    return flop_registry


class _Count(MetaWalk):
    """Counts the operations that run under this mode.

    Args:
        cell: The model's cell, for the error.
        state_shapes: Sizes of the states, in order; a tensor of these sizes is a state.

    Attributes:
        single: Operations of products of two matrices, and of convolutions.
        of_state: Operations of products of batches of matrices, and those on numbers of a state.
    """

    def __init__(self, cell: str, state_shapes: frozenset[tuple[int, ...]]) -> None:
        super().__init__()
        self._cell, self._state_shapes = cell, state_shapes
        self.single = self.of_state = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        packet = func._overloadpacket
        if packet in (_aten.mv, _aten.dot):
            self.single += 2 * args[0].numel()
        elif (formula := _formulas().get(packet)) is not None:
            products = formula(*args, **(kwargs or {}), out_val=result)
            if packet in _BATCHED:
                self.of_state += products
            else:
                self.single += products
        elif func.namespace not in _COUNTED:
            raise UserError(
                f"cell {self._cell}: its plain form runs {func.name()}, whose operations are not "
                "counted; register them with torch.utils.flop_counter.register_flop_formula"
            )
        elif each := _POINTWISE.get(func.name().split("::")[1].split(".")[0].removesuffix("_")):
            self.of_state += each * self._numbers((*args, result))
        return result

    def _numbers(self, tensors: Iterable[Any]) -> int:
        """Return the numbers of the largest state among what an operation reads and writes."""
        states = [
            math.prod(one.shape)
            for one in tensors
            if isinstance(one, Tensor) and _sizes(one) in self._state_shapes
        ]
        return max(states, default=0)
