"""The tape engine as an operator: what autograd, autocast and torch.compile see.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, a = 2 attentions of a step: its read and its write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from elman.ops.common.checks import (
    Shape,
    check,
    check_kernel_tensors,
    check_resets,
    check_sequences,
    check_state,
)
from elman.ops.common.operator import INCOMING, Operator
from elman.ops.tape import cpu
from elman.ops.tape.cuda import kernels
from elman.ops.tape.recurrences import compiled_cell
from elman.ops.tape.results import Inputs, Results, room


@dataclass(frozen=True)
class Kernels:
    """What the operators ask of a compiled backend.

    Args:
        forward: Runs a write over time.
        backward: Runs it back; of the input it needs the shape alone.
        narrow: Whether the input may be narrower than the state.
    """

    forward: Callable[[str, Inputs, bool, Tensor | None], Results]
    backward: Callable[
        [
            str,
            Tensor | None,
            Tensor | None,
            Tensor | None,
            Inputs,
            Results,
            Tensor | None,
        ],
        Inputs,
    ]
    narrow: bool = False


KERNELS: dict[str, Kernels] = {
    "cpu": Kernels(cpu.forward, cpu.backward),
    "cuda": Kernels(kernels.forward, kernels.backward, narrow=True),
}
"""By the name of the backend."""


class Call(NamedTuple):
    """What the operator reads.

    Args:
        write: Which value the tape is written with.
        backend: A key of :data:`KERNELS`.
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

    @property
    def inputs(self) -> Inputs:
        """What a kernel reads."""
        return Inputs(self.input_bti, self.matrix_pi, self.tape_bni, self.state_bi)


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


def forward(call: Call) -> Results:
    """Run the recurrence over time."""
    run = KERNELS[call.backend].forward
    return run(call.write, call.inputs, call.keep, call.resets_bt)


def backward(saved: Saved) -> Inputs:
    """Return the gradients of input, matrices, first tape and first state."""
    # Of the input only the shape is read, and nothing of the last tape and state: the states, the
    # first tape and the first state stand in their places.
    first = (saved.tape_bni, saved.state_bi)
    given = Inputs(saved.y_bti, saved.matrix_pi, *first)
    kept = (saved.weights_btan, saved.values_bti, saved.checkpoints_cbni)
    results = Results(saved.y_bti, *first, *kept)
    pulls = (saved.dy_bti, saved.dtape_bni, saved.dstate_bi)
    run = KERNELS[saved.backend].backward
    return run(saved.write, *pulls, given, results, saved.resets_bt)


def _save(call: Call, results: Results) -> Saved:
    incoming = (INCOMING, INCOMING, INCOMING)
    given = (call.matrix_pi, call.tape_bni, call.state_bi)
    kept = (results.y_bti, results.weights_btan, results.values_bti, results.checkpoints_cbni)
    return Saved(call.write, call.backend, *incoming, *given, *kept, call.resets_bt)


def _fake_backward(saved: Saved) -> Inputs:
    read = (saved.y_bti, saved.matrix_pi, saved.tape_bni, saved.state_bi)
    return Inputs(*(one.new_empty(one.shape) for one in read))


def check_call(
    of: str,
    input_bti: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
    resets_bt: Tensor | None = None,
) -> None:
    """Compare a tape and a state with the sequence that they stand before.

    Raises:
        ValueError: one has another shape, dtype or device.
    """
    check_sequences(of, [input_bti])
    batch, _, width = input_bti.shape
    check_state("state", of, state_bi, (batch, width), input_bti)
    check_state("tape", of, tape_bni, (batch, None, width), input_bti)
    check_resets(of, resets_bt, input_bti)


def check_kernel_call(call: Call) -> None:
    """Compare every tensor with what the kernel reads, which looks at no shape itself.

    Raises:
        ValueError: one has another shape, dtype or device, or there is no channel or no slot.
    """
    of, like = f"tape {call.write}", call.state_bi
    batch, width = like.shape
    if width < 1 or call.tape_bni.shape[1] < 1:
        raise ValueError(f"{of}: expected at least one channel and one slot")
    input_bti = call.input_bti
    shapes: dict[str, tuple[Tensor, Shape]] = {
        "input": (input_bti, (batch, input_bti.shape[1], width)),
        "matrices": (call.matrix_pi, (compiled_cell(call.write).blocks * width, width)),
        "tape": (call.tape_bni, (batch, call.tape_bni.shape[1], width)),
    }
    for name, (tensor, shape) in shapes.items():
        narrow = KERNELS[call.backend].narrow and tensor is input_bti
        dtype = input_bti.dtype if narrow else like.dtype
        check(f"{name} of {of}", tensor, shape, like.device, (dtype,))


def check_operator(call: Call) -> None:
    """Compare every tensor of an operator's call with what the kernel reads.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
    """
    of, input_bti = f"tape {call.write}", call.input_bti
    check_kernel_tensors(of, [input_bti], [call.matrix_pi])
    check_call(of, input_bti, call.tape_bni, call.state_bi, call.resets_bt)
    check_kernel_call(call)


TAPE = Operator(
    "tape",
    Call,
    Saved,
    check=check_operator,
    forward=forward,
    fake=lambda call: room(call.write, call.inputs, call.keep),
    save=_save,
    backward=backward,
    fake_backward=_fake_backward,
    incoming=("dy_bti", "dtape_bni", "dstate_bi"),
    gradients=("input_bti", "matrix_pi", "tape_bni", "state_bi"),
    # The state's precision is the engine's: what autocast made of the projections is widened.
    widens=("cpu",),
)
"""The recurrence over time. Its results are those of :class:`elman.ops.tape.results.Results`."""
