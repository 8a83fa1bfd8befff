"""The dense engine as custom operators: what autograd, autocast and torch.compile see.

Where nobody looks at operators, :class:`Dense` calls the kernels without one.

Shape legend: b batch, t time, i channels of the state, s parts of the state, m numbers of the memo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.ops.common.door import (
    Shape,
    check,
    check_kernel_tensors,
    check_resets,
    check_sequences,
    check_state,
)
from elman.ops.common.operators import apply, backward_is_plain, operators_are_seen
from elman.ops.common.transforms import OperatorFunction, keeps, operator, register_gradient
from elman.ops.dense import cpu
from elman.ops.dense.cuda import kernels
from elman.ops.dense.heads import channel_count, head_count, row_count
from elman.ops.dense.recurrences import compiled_cell
from elman.ops.dense.results import Gradients, Results, Tensors, gradient_room, room

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Kernels:
    """What the operators ask of a compiled backend.

    Args:
        forward: Runs a step over time.
        backward: Runs it back; of the inputs it needs none.
        narrow: Whether the inputs may be narrower than the state.
    """

    forward: Callable[[str, Tensors, Tensors, Tensors, Tensor, bool, Tensor | None], Results]
    backward: Callable[
        [str, Tensor | None, Tensor | None, Tensors, Tensors, Tensor, Results, Tensor | None],
        Gradients,
    ]
    narrow: bool = False


KERNELS: dict[str, Kernels] = {
    "cpu": Kernels(cpu.forward, cpu.backward),
    "cuda": Kernels(kernels.forward, kernels.backward, narrow=True),
}
"""By the name of the backend."""


@operator("dense")
def dense(
    step: str,
    backend: str,
    keep: bool,
    inputs: Sequence[Tensor],
    recurrent: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_sbi: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a step of the dense engine over time.

    Args:
        step: Name of the step.
        backend: A key of :data:`KERNELS`.
        keep: Whether a backward pass follows.
        inputs: Sequences [B, T, channels] of one dtype; on a CPU, that of everything else.
        recurrent: The matrix [out, in] or [heads, out, in], or two factors, in the dtype of the
            state.
        parameters: The step's own, likewise.
        first_sbi: State before the first step, in fp32 or wider.
        resets_bt: Whether the state of a row is zero before a step, bool; None: never.

    Returns:
        The states of all steps [B, T, i], the state after the last one, and what the backward pass
        needs: the memo [B, T, m, i] and 1 / root mean square [B, T], both empty where nobody
        needs them. States and memo have the dtype of the inputs, the other two that of the state.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
        UserError: the backend cannot read the tensors' device or dtype.
    """
    of, batch = f"dense {step}", inputs[0].shape[0]
    check_call(step, inputs, recurrent, list(first_sbi.unbind(0)), resets_bt)
    check_kernel_tensors(of, inputs, (*recurrent, *parameters))
    check_kernel_call(step, backend, inputs, recurrent, parameters, list(first_sbi.unbind(0)))
    check_state("state", of, first_sbi[0], (batch, first_sbi.shape[2]), inputs[0])
    return _forward(step, backend, keep, inputs, recurrent, parameters, first_sbi, resets_bt)


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


def check_kernel_call(
    step: str,
    backend: str,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    state: Tensors,
) -> None:
    """Compare every tensor with what the step's kernel reads, which looks at no shape itself.

    Raises:
        ValueError: there are more or fewer tensors, or one has another shape, dtype or device.
    """
    cell, like, of = compiled_cell(step), state[0], f"dense {step}"
    (batch, channels), steps = like.shape, inputs[0].shape[1]
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
    narrow = KERNELS[backend].narrow
    groups: dict[str, tuple[Tensors, list[Shape]]] = {
        "input": (inputs, sequences),
        "matrix": (recurrent, matrices),
        "parameter": (parameters, [own] * cell.parameters),
        "state": (state, [(batch, channels)] * cell.states),
    }
    for name, (tensors, shapes) in groups.items():
        if len(tensors) != len(shapes):
            raise ValueError(f"{of}: {len(tensors)} of {name}, expected {len(shapes)}")
        dtypes = (inputs[0].dtype if narrow and tensors is inputs else like.dtype,)
        for number, (one, shape) in enumerate(zip(tensors, shapes, strict=True)):
            check(f"{name} {number} of {of}", one, shape, like.device, dtypes)


def _forward(
    step: str,
    backend: str,
    keep: bool,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    resets_bt: Tensor | None,
) -> Outputs:
    given = (inputs, recurrent, parameters, first_sbi, keep, resets_bt)
    return _outputs(KERNELS[backend].forward(step, *given))


def _outputs(found: Results) -> Outputs:
    return found.y_bti, found.last_sbi, found.memo_btmi, found.norms_bt


@dense.register_fake
def _(
    step: str,
    backend: str,
    keep: bool,
    inputs: Sequence[Tensor],
    recurrent: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_sbi: Tensor,
    resets_bt: Tensor | None,
) -> Outputs:
    return _outputs(room(step, inputs[0], first_sbi, keep))


@operator("dense_backward")
def dense_backward(
    step: str,
    backend: str,
    dy_bti: Tensor | None,
    dlast_sbi: Tensor | None,
    recurrent: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_sbi: Tensor,
    y_bti: Tensor,
    memo_btmi: Tensor,
    norms_bt: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """Return the gradients of inputs, matrices, parameters and first state."""
    results = Results(y_bti, first_sbi, memo_btmi, norms_bt)
    given = (dy_bti, dlast_sbi, recurrent, parameters, first_sbi, results, resets_bt)
    found = KERNELS[backend].backward(step, *given)
    return found.inputs, found.recurrent, found.parameters, found.first_sbi


@dense_backward.register_fake
def _(
    step: str,
    backend: str,
    dy_bti: Tensor | None,
    dlast_sbi: Tensor | None,
    recurrent: Sequence[Tensor],
    parameters: Sequence[Tensor],
    first_sbi: Tensor,
    y_bti: Tensor,
    memo_btmi: Tensor,
    norms_bt: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    matrices = [one.new_empty(one.shape) for one in recurrent]
    own = [one.new_empty(one.shape) for one in parameters]
    return gradient_room(step, y_bti), matrices, own, first_sbi.new_empty(first_sbi.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    # The inputs are not kept: what a backward pass needs of them stands in the memo.
    ctx.step, ctx.backend, _, given, *groups, first_sbi, resets_bt = inputs
    ctx.sizes = [len(given), *(len(group) for group in groups)]
    y_bti, _, memo_btmi, norms_bt = output
    tensors = (tensor for group in groups for tensor in group)
    ctx.save_for_backward(*tensors, first_sbi, y_bti, memo_btmi, norms_bt, resets_bt)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, dy_bti: Tensor | None, dlast_sbi: Tensor | None, *, plain: bool
) -> Gradients:
    """Return the gradients of all that was read.

    Args:
        ctx: As :func:`_setup` left it.
        dy_bti: Gradient of the states.
        dlast_sbi: Gradient of the last state.
        plain: Whether a plain call may compute them, where no operator is seen.
    """
    saved = list(ctx.saved_tensors)
    recurrent, parameters = ([saved.pop(0) for _ in range(n)] for n in ctx.sizes[1:])
    first_sbi, y_bti, memo_btmi, norms_bt, resets_bt = saved
    if plain and backward_is_plain((y_bti, *recurrent, dy_bti, dlast_sbi)):
        results = Results(y_bti, first_sbi, memo_btmi, norms_bt)
        given = (dy_bti, dlast_sbi, recurrent, parameters, first_sbi, results, resets_bt)
        return KERNELS[ctx.backend].backward(ctx.step, *given)
    tensors = (recurrent, parameters, first_sbi, y_bti, memo_btmi, norms_bt, resets_bt)
    return Gradients(*dense_backward(ctx.step, ctx.backend, dy_bti, dlast_sbi, *tensors))


def _differentiate_operator(
    ctx: Any, dy_bti: Tensor | None, dlast_sbi: Tensor | None, *rest: Tensor | None
) -> tuple[None, None, None, list[Tensor], list[Tensor], list[Tensor], Tensor, None]:
    found = _differentiate(ctx, dy_bti, dlast_sbi, plain=False)
    read = (found.inputs, found.recurrent, found.parameters, found.first_sbi)
    return None, None, None, *read, None


register_gradient("dense", _differentiate_operator, _setup)
# The state's precision is the engine's: what autocast made of the projections is widened.
dense.register_autocast("cpu", torch.float32)


class Dense(OperatorFunction):
    """The operator :func:`dense` where nobody looks; memo and norms stay inside."""

    @staticmethod
    def forward(
        ctx: Any,
        step: str,
        backend: str,
        sizes: tuple[int, int, int],
        resets_bt: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run the kernel on inputs, matrices, parameters and the first state, in this order."""
        rest = list(tensors)
        groups = [[rest.pop(0) for _ in range(size)] for size in sizes]
        (first_sbi,) = rest
        given = (groups[0], groups[1], groups[2], first_sbi, resets_bt)
        outputs = _forward(step, backend, True, *given)
        _setup(ctx, (step, backend, True, *given), outputs)
        return outputs[:2]

    @staticmethod
    def backward(
        ctx: Any, dy_bti: Tensor | None, dlast_sbi: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Run the kernels of the backward pass."""
        found = _differentiate(ctx, dy_bti, dlast_sbi, plain=True)
        read = (*found.inputs, *found.recurrent, *found.parameters, found.first_sbi)
        return None, None, None, None, *read


def run(
    step: str,
    backend: str,
    inputs: Tensors,
    recurrent: Tensors,
    parameters: Tensors,
    first_sbi: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the first two outputs of :func:`dense`, by an operator only where it is seen."""
    tensors = (*inputs, *recurrent, *parameters, first_sbi)
    keep = keeps(tensors)
    given = (inputs, recurrent, parameters, first_sbi, resets_bt)
    if operators_are_seen((*tensors, resets_bt)):
        y_bti, last_sbi, *_ = dense(step, backend, keep, *given)
        return y_bti, last_sbi
    if not keep:
        return _forward(step, backend, False, *given)[:2]
    sizes = (len(inputs), len(recurrent), len(parameters))
    outputs: tuple[Tensor, Tensor] = apply(Dense, step, backend, sizes, resets_bt, *tensors)
    return outputs
