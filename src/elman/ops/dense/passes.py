"""What the passes of the dense engine read and leave, on every machine.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
m numbers of the memo, s parts of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from elman.ops.common.operator import INCOMING
from elman.ops.dense.recurrences import compiled_cell

Tensors = Sequence[Tensor]


class Call(NamedTuple):
    """What the operator reads.

    Args:
        step: Name of the step.
        backend: A key of :data:`elman.ops.dense.custom_op.KERNELS`.
        keep: Whether a backward pass follows.
        inputs: Sequences [B, T, channels] of one dtype; on a CPU, that of everything else.
        recurrent: The matrix [out, in] or [heads, out, in], or two factors, in the dtype of the
            state.
        parameters: The step's own, likewise.
        first_sbi: State before the first step, in fp32 or wider.
        resets_bt: Whether the state of a row is zero before a step, bool; None: never.
    """

    step: str
    backend: str
    keep: bool
    inputs: Sequence[Tensor]
    recurrent: Sequence[Tensor]
    parameters: Sequence[Tensor]
    first_sbi: Tensor
    resets_bt: Tensor | None


class Saved(NamedTuple):
    """What the backward pass reads. Of the inputs, it needs what stands in the memo."""

    step: str
    backend: str
    dy_bti: Tensor | None
    dlast_sbi: Tensor | None
    recurrent: Sequence[Tensor]
    parameters: Sequence[Tensor]
    first_sbi: Tensor
    y_bti: Tensor
    memo_btmi: Tensor
    norms_bt: Tensor
    resets_bt: Tensor | None


class Results(NamedTuple):
    """What a forward pass leaves.

    Args:
        y_bti: States of all steps, in the dtype of the inputs.
        last_sbi: State after the last step.
        memo_btmi: What the backward pass needs of every step, in the dtype of the inputs; no
            numbers where nothing is kept.
        norms_bt: 1 / root mean square of every new state, in the dtype of the state, for steps
            that divide by it.
    """

    y_bti: Tensor
    last_sbi: Tensor
    memo_btmi: Tensor
    norms_bt: Tensor


class Gradients(NamedTuple):
    """Gradients of what a forward pass read, in the order of its arguments."""

    inputs: list[Tensor]
    recurrent: list[Tensor]
    parameters: list[Tensor]
    first_sbi: Tensor


def save(call: Call, results: Results) -> Saved:
    """Return what a backward pass reads, with nothing yet for the gradients that come in."""
    given = (call.recurrent, call.parameters, call.first_sbi)
    kept = (results.y_bti, results.memo_btmi, results.norms_bt)
    return Saved(call.step, call.backend, INCOMING, INCOMING, *given, *kept, call.resets_bt)


def room(call: Call) -> Results:
    """Return contiguous room for the results of a forward pass."""
    cell, input_btp, first_sbi = compiled_cell(call.step), call.inputs[0], call.first_sbi
    (batch, steps, _), channels = input_btp.shape, first_sbi.shape[2]
    return Results(
        input_btp.new_empty(batch, steps, channels),
        first_sbi.new_empty(cell.states, batch, channels),
        input_btp.new_empty(batch, steps, cell.memo if call.keep else 0, channels),
        first_sbi.new_empty((batch, steps) if cell.norm else (0,)),
    )


def gradient_room(saved: Saved) -> list[Tensor]:
    """Return contiguous room for the gradients of the inputs."""
    cell, (batch, steps, channels) = compiled_cell(saved.step), saved.y_bti.shape
    widths = (cell.blocks * channels, *[channels] * cell.others)
    return [saved.y_bti.new_empty(batch, steps, width) for width in widths]


def adjacent(tensor_btc: Tensor) -> Tensor:
    """Return the tensor with its channels adjacent: as it is, or a copy."""
    return tensor_btc if tensor_btc.stride(-1) == 1 else tensor_btc.contiguous()
