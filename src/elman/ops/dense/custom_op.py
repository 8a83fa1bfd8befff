"""The dense engine as an operator: what autograd, autocast and torch.compile see.

Shape legend: b batch, t time, i channels of the state, s parts of the state, m numbers of the memo.
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
from elman.ops.dense import cpu
from elman.ops.dense.cuda import kernels
from elman.ops.dense.heads import channel_count, head_count, row_count
from elman.ops.dense.passes import (
    Call,
    Gradients,
    Results,
    Saved,
    Tensors,
    gradient_room,
    room,
    save,
)
from elman.ops.dense.recurrences import compiled_cell

KERNELS: dict[str, Kernels[Call, Results, Saved, Gradients]] = {
    "cpu": Kernels(cpu.forward, cpu.backward),
    "cuda": Kernels(kernels.forward, kernels.backward, narrow=True),
}
"""By the name of the backend."""


def forward(call: Call) -> Results:
    """Run the step over time."""
    return KERNELS[call.backend].forward(call)


def backward(saved: Saved) -> Gradients:
    """Return the gradients of inputs, matrices, parameters and first state."""
    return KERNELS[saved.backend].backward(saved)


def _fake_backward(saved: Saved) -> Gradients:
    groups = (saved.recurrent, saved.parameters)
    matrices, own = ([one.new_empty(one.shape) for one in group] for group in groups)
    first_sbi = saved.first_sbi.new_empty(saved.first_sbi.shape)
    return Gradients(gradient_room(saved), matrices, own, first_sbi)


def check_call(
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    state: Tensors,
    resets_bt: Tensor | None = None,
) -> None:
    """Compare the sequences and the state of a call with the recurrent matrix.

    Raises:
        ValueError: one has another shape, dtype or device.
    """
    of = f"dense {step}"
    check_sequences(of, inputs, [row_count(recurrent)])
    channels = channel_count(recurrent)
    for number, part in enumerate(state):
        check_state(f"state {number}", of, part, (inputs[0].shape[0], channels), inputs[0])
    check_resets(of, resets_bt, inputs[0])


def check_kernel_call(call: Call) -> None:
    """Compare every tensor with what the step's kernel reads, which looks at no shape itself.

    Raises:
        ValueError: there are more or fewer tensors, or one has another shape, dtype or device.
    """
    _, _, _, inputs, recurrent, parameters, first_sbi, _ = call
    cell, of = compiled_cell(call.step), f"dense {call.step}"
    (states, batch, channels), steps = first_sbi.shape, inputs[0].shape[1]
    rows, rank = cell.blocks * channels, recurrent[-1].shape[0]
    if len(recurrent) not in (1, 2) or rank < 1:
        raise ValueError(f"{of}: expected one matrix, or two factors of rank 1 or more")
    heads = head_count(recurrent)
    if heads > 1 and not cell.per_channel:
        raise ValueError(f"{of}: its matrix has no heads, since the step adds up its channels")
    own: Shape = (channels, channels) if cell.extra else (1,)
    matrices: list[Shape] = [(rows, channels)]
    if recurrent[0].ndim == 3:
        matrices = [(heads, rows // heads, channels // heads)]
    elif len(recurrent) == 2:
        matrices = [(rows, rank), (rank, channels)]
    sequences: list[Shape] = [(batch, steps, rows), *[(batch, steps, channels)] * cell.others]
    narrow = KERNELS[call.backend].narrow
    groups: dict[str, tuple[Tensors, list[Shape]]] = {
        "input": (inputs, sequences),
        "matrix": (recurrent, matrices),
        "parameter": (parameters, [own] * cell.parameters),
    }
    for name, (tensors, shapes) in groups.items():
        if len(tensors) != len(shapes):
            raise ValueError(f"{of}: {len(tensors)} of {name}, expected {len(shapes)}")
        dtypes = (inputs[0].dtype if narrow and tensors is inputs else first_sbi.dtype,)
        for number, (one, shape) in enumerate(zip(tensors, shapes, strict=True)):
            check(f"{name} {number} of {of}", one, shape, first_sbi.device, dtypes)
    if states != cell.states:
        raise ValueError(f"{of}: {states} of state, expected {cell.states}")


def check_operator(call: Call) -> None:
    """Compare every tensor of an operator's call with what the kernel reads.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
    """
    step, _, _, inputs, recurrent, parameters, first_sbi, resets_bt = call
    of, batch = f"dense {step}", inputs[0].shape[0]
    check_call(step, inputs, recurrent, first_sbi.unbind(0), resets_bt)
    check_kernel_tensors(of, inputs, (*recurrent, *parameters))
    check_kernel_call(call)
    check_state("state", of, first_sbi[0], (batch, first_sbi.shape[2]), inputs[0])


DENSE = Operator(
    "dense",
    Call,
    Saved,
    check=check_operator,
    forward=forward,
    fake=room,
    save=save,
    backward=backward,
    fake_backward=_fake_backward,
    incoming=("dy_bti", "dlast_sbi"),
    gradients=("inputs", "recurrent", "parameters", "first_sbi"),
    # The state's precision is the engine's: what autocast made of the projections is widened.
    widens=("cpu",),
)
"""A step over time. Its results are those of :class:`elman.ops.dense.passes.Results`."""
