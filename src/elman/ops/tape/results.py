"""What a pass of the tape engine reads and leaves, on every machine.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, a = 2 attentions of a step: its read and its write.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from elman.ops.tape.recurrences import NO_PRODUCT, compiled_cell


class Inputs(NamedTuple):
    """What a call reads, all of one dtype; a GPU's kernels also read a narrower input.

    Args:
        input_bti: The part of the pre-activation that depends on neither state.
        matrix_pi: W_h, and W_r behind it where there is one.
        tape_bni: Tape before the first step.
        state_bi: State before the first step.
    """

    input_bti: Tensor
    matrix_pi: Tensor
    tape_bni: Tensor
    state_bi: Tensor


class Results(NamedTuple):
    """What a forward pass leaves; the last three have no numbers where nobody differentiates.

    Args:
        y_bti: States of all steps, in the dtype of the input.
        tape_bni: Tape after the last step.
        state_bi: State after the last step.
        weights_btan: Weights of the slots.
        values_bti: What the steps wrote, in the dtype of the input; no numbers where that is the
            state.
        checkpoints_cbni: Tapes before every so many steps, but for the first.
    """

    y_bti: Tensor
    tape_bni: Tensor
    state_bi: Tensor
    weights_btan: Tensor
    values_bti: Tensor
    checkpoints_cbni: Tensor


def interval(steps: int) -> int:
    """Return how many steps lie between checkpoints of the tape.

    The backward pass holds the checkpoints and the tapes of one segment. Their sum is least at the
    square root.
    """
    return math.ceil(math.sqrt(steps))


def room(write: str, given: Inputs, keep: bool) -> Results:
    """Return contiguous room for the results of a forward pass.

    Args:
        write: Which value is written.
        given: What the pass reads.
        keep: Whether a backward pass follows.
    """
    (batch, steps, channels), slots = given.input_bti.shape, given.tape_bni.shape[1]
    values = keep and compiled_cell(write).value != NO_PRODUCT
    narrow, wide = given.input_bti.new_empty, given.state_bi.new_empty
    return Results(
        narrow(batch, steps, channels),
        wide(batch, slots, channels),
        wide(batch, channels),
        wide(batch, steps, 2, slots if keep else 0),
        narrow(batch, steps, channels if values else 0),
        wide((steps - 1) // interval(steps) if keep else 0, batch, slots, channels),
    )
