"""The tape engine as an operator: what autograd, autocast and torch.compile see.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, a = 2 attentions of a step: its read and its write.
"""

from __future__ import annotations

from torch import Tensor

from elman.ops.common.backend import Kernels
from elman.ops.common.checks import (
    Shape,
    check,
    check_kernel_tensors,
    check_resets,
    check_sequences,
    check_state,
)
from elman.ops.common.operator import Operator
from elman.ops.tape import cpu
from elman.ops.tape.cuda import kernels
from elman.ops.tape.passes import Call, Gradients, Results, Saved, room, save
from elman.ops.tape.recurrences import compiled_cell

KERNELS: dict[str, Kernels[Call, Results, Saved, Gradients]] = {
    "cpu": Kernels(cpu.forward, cpu.backward),
    "cuda": Kernels(kernels.forward, kernels.backward, narrow=True),
}
"""By the name of the backend."""


def forward(call: Call) -> Results:
    """Run the recurrence over time."""
    return KERNELS[call.backend].forward(call)


def backward(saved: Saved) -> Gradients:
    """Return the gradients of input, matrices, first tape and first state."""
    return KERNELS[saved.backend].backward(saved)


def _fake_backward(saved: Saved) -> Gradients:
    read = (saved.y_bti, saved.matrix_pi, saved.tape_bni, saved.state_bi)
    return Gradients(*(one.new_empty(one.shape) for one in read))


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
    fake=room,
    save=save,
    backward=backward,
    fake_backward=_fake_backward,
    incoming=("dy_bti", "dtape_bni", "dstate_bi"),
    gradients=("input_bti", "matrix_pi", "tape_bni", "state_bi"),
    # The state's precision is the engine's: what autocast made of the projections is widened.
    widens=("cpu",),
)
"""The recurrence over time. Its results are those of :class:`elman.ops.tape.passes.Results`."""
