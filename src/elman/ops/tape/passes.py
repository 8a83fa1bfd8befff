"""What the passes of the tape engine read and leave, on every machine.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, a = 2 attentions of a step: its read and its write.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from elman.ops.common.operator import INCOMING
from elman.ops.tape.recurrences import NO_PRODUCT, compiled_cell


class Call(NamedTuple):
    """What the operator reads.

    Args:
        write: Which value the tape is written with.
        backend: A key of :data:`elman.ops.tape.custom_op.KERNELS`.
        keep: Whether a backward pass follows.
        input_bti: Sequence; on a CPU, everything here has its dtype.
        matrix_pi: W_h, and W_r behind it where ``write`` is ``full``.
        tape_bni: Tape before the first step.
        state_bi: State before the first step.
        resets_bt: Whether state and tape of a row are zero before a step, bool; None: never.
    """

    write: str
    backend: str
    keep: bool
    input_bti: Tensor
    matrix_pi: Tensor
    tape_bni: Tensor
    state_bi: Tensor
    resets_bt: Tensor | None


class Saved(NamedTuple):
    """What the backward pass reads: gradients of results, and of a call what it needs."""

    write: str
    backend: str
    dy_bti: Tensor | None
    dtape_bni: Tensor | None
    dstate_bi: Tensor | None
    matrix_pi: Tensor
    tape_bni: Tensor
    state_bi: Tensor
    y_bti: Tensor
    weights_btan: Tensor
    values_bti: Tensor
    checkpoints_cbni: Tensor
    resets_bt: Tensor | None


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


class Gradients(NamedTuple):
    """Gradients of what a forward pass read, in the order of its arguments."""

    input_bti: Tensor
    matrix_pi: Tensor
    tape_bni: Tensor
    state_bi: Tensor


def save(call: Call, results: Results) -> Saved:
    """Return what a backward pass reads, with nothing yet for the gradients that come in."""
    incoming = (INCOMING, INCOMING, INCOMING)
    given = (call.matrix_pi, call.tape_bni, call.state_bi)
    kept = (results.y_bti, results.weights_btan, results.values_bti, results.checkpoints_cbni)
    return Saved(call.write, call.backend, *incoming, *given, *kept, call.resets_bt)


def interval(steps: int) -> int:
    """Return how many steps lie between checkpoints of the tape.

    The backward pass holds the checkpoints and the tapes of one segment. Their sum is least at the
    square root.
    """
    return math.ceil(math.sqrt(steps))


def room(call: Call) -> Results:
    """Return contiguous room for the results of a forward pass."""
    (batch, steps, channels), slots = call.input_bti.shape, call.tape_bni.shape[1]
    keep, values = call.keep, call.keep and compiled_cell(call.write).value != NO_PRODUCT
    narrow, wide = call.input_bti.new_empty, call.state_bi.new_empty
    return Results(
        narrow(batch, steps, channels),
        wide(batch, slots, channels),
        wide(batch, channels),
        wide(batch, steps, 2, slots if keep else 0),
        narrow(batch, steps, channels if values else 0),
        wide((steps - 1) // interval(steps) if keep else 0, batch, slots, channels),
    )
