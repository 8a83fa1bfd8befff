"""The minimum work of a kernel, and the minimum time that this machine needs for it.

Shape legend: b batch, t time, h heads, r value rows, n key columns, c channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from elman.ops.channel import plan as channel_plan
from elman.ops.matrix_state import plan as matrix_plan
from elman.ops.matrix_state.recurrences import CELLS


@dataclass(frozen=True)
class Work:
    """The work of one call.

    Attributes:
        moved: Bytes of all inputs and outputs, each once.
        multiplies: Multiplications, additions and fused multiply-adds.
        tanhs: Evaluations of tanh or of another function that costs the same.
    """

    moved: float = 0.0
    multiplies: float = 0.0
    tanhs: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.moved + other.moved,
            self.multiplies + other.multiplies,
            self.tanhs + other.tanhs,
        )


class Rates(Protocol):
    """The rates of a machine."""

    multiplies: float | None
    tanhs: float | None

    def bandwidth(self, moved: float) -> float:
        """Return bytes a second for a working set of ``moved`` bytes."""


def floor_seconds(work: Work, rates: Rates) -> float:
    """Return the larger of the time to move the bytes and the time to compute."""
    computing = 0.0
    if rates.multiplies:
        computing += work.multiplies / rates.multiplies
    if rates.tanhs:
        computing += work.tanhs / rates.tanhs
    moving = work.moved / rates.bandwidth(work.moved) if work.moved else 0.0
    return max(moving, computing)


def work_of(operator: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> Work:
    """Return the work of one call of a kernel.

    Args:
        operator: Its name, as in ``matrix_state_backward``.
        args: Its arguments; the first is the plan.
        tensors: Every tensor that it reads or writes.
    """
    moved = float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    engine, _, direction = operator.partition("_backward")
    backward = operator != engine or bool(direction)
    count = _COUNTED.get(engine)
    if count is None:
        return Work(moved)
    multiplies, tanhs = count(args, tensors, backward)
    return Work(moved, multiplies, tanhs)


def _matrix_state(
    args: Sequence[Any], tensors: Sequence[Tensor], backward: bool
) -> tuple[float, float]:
    """Count per state element and step (the cells of csrc/cells/matrix_state.h)."""
    plan = matrix_plan.parse(args[0])
    cell = CELLS[plan.cell]
    source_btc = next(tensor for tensor in tensors if tensor.ndim == 3)
    elements = source_btc.shape[0] * source_btc.shape[1] * plan.heads * plan.rows * plan.columns
    phi = plan.nonlinearity == "tanh"
    scaled = plan.decay != "none" or cell.gates > 0 or cell.column
    # c S, + w k; times z; r = S k.
    update = 1 + scaled + cell.column + cell.reads
    if not backward:
        return elements * (update + 1), elements * phi  # and y = S' q
    # Forward again; dS' += dy q, dq, dw, dk; times phi'; dc and c dS'; dr key and dkey; z.
    gradients = 4 + 2 * phi + 2 * scaled + 2 * cell.reads + 2 * cell.column
    return elements * (update + gradients), elements * phi


def _channel(args: Sequence[Any], tensors: Sequence[Tensor], backward: bool) -> tuple[float, float]:
    """Count per channel and step: one function in the step, one in the self gate."""
    plan = channel_plan.parse(args[0])
    source_bts = next(tensor for tensor in tensors if tensor.ndim == 3)
    state_bc = next(tensor for tensor in tensors if tensor.ndim == 2)
    elements = source_bts.shape[0] * source_bts.shape[1] * state_bc.shape[1]
    functions = 1 + plan.self_gate
    return elements * (2 + functions) * (3 if backward else 1), elements * functions


_COUNTED: Mapping[str, Any] = {"matrix_state": _matrix_state, "channel": _channel}
