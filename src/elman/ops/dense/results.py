"""What a pass of the dense engine leaves, on every machine.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
m numbers of the memo, s parts of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from elman.ops.dense.recurrences import compiled_cell

Tensors = Sequence[Tensor]


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


def room(step: str, input_btp: Tensor, first_sbi: Tensor, keep: bool) -> Results:
    """Return contiguous room for the results of a forward pass.

    Args:
        step: Name of the step.
        input_btp: Its first input.
        first_sbi: State before the first step.
        keep: Whether a backward pass follows.
    """
    cell = compiled_cell(step)
    (batch, steps, _), channels = input_btp.shape, first_sbi.shape[2]
    return Results(
        input_btp.new_empty(batch, steps, channels),
        first_sbi.new_empty(cell.states, batch, channels),
        input_btp.new_empty(batch, steps, cell.memo if keep else 0, channels),
        first_sbi.new_empty((batch, steps) if cell.norm else (0,)),
    )


def gradient_room(step: str, y_bti: Tensor) -> list[Tensor]:
    """Return contiguous room for the gradients of the inputs.

    Args:
        step: Name of the step.
        y_bti: States of all steps.
    """
    cell, (batch, steps, channels) = compiled_cell(step), y_bti.shape
    widths = (cell.blocks * channels, *[channels] * cell.others)
    return [y_bti.new_empty(batch, steps, width) for width in widths]


def adjacent(tensor_btc: Tensor) -> Tensor:
    """Return the tensor with its channels adjacent: as it is, or a copy."""
    return tensor_btc if tensor_btc.stride(-1) == 1 else tensor_btc.contiguous()
