"""The tape engine as custom operators: what autograd, autocast and torch.compile see.

Where nobody looks at operators, :class:`Tape` calls the kernels without one.

Shape legend: b batch, t time, i channels of the state, p = i or 2 i rows of the matrices, n slots
of the tape, c checkpoints, a = 2 attentions of a step: its read and its write.
"""

from __future__ import annotations

from collections.abc import Callable
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
from elman.ops.tape import cpu
from elman.ops.tape.cuda import kernels
from elman.ops.tape.recurrences import compiled_cell
from elman.ops.tape.results import Inputs, Results, room

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
Pulls = tuple[Tensor | None, Tensor | None, Tensor | None]


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


@operator("tape")
def tape(
    write: str,
    backend: str,
    keep: bool,
    input_bti: Tensor,
    matrix_pi: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run the tape recurrence over time.

    Args:
        write: Which value the tape is written with.
        backend: A key of :data:`KERNELS`.
        keep: Whether a backward pass follows.
        input_bti: Sequence; on a CPU, everything here has its dtype.
        matrix_pi: W_h, and W_r behind it where ``write`` is ``full``.
        tape_bni: Tape before the first step.
        state_bi: State before the first step.
        resets_bt: Whether state and tape of a row are zero before a step, bool; None: never.

    Returns:
        The states of all steps [B, T, i], the last tape, the last state, and what the backward pass
        needs: weights of the slots [B, T, 2, n], the values that were written [B, T, i] and tapes
        [C, B, n, i]. Those are empty where nobody needs them. States and values have the dtype of
        the input, all else that of the state.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
        UserError: the backend cannot read the tensors' device or dtype.
    """
    check_kernel_tensors(f"tape {write}", [input_bti], [matrix_pi])
    check_call(f"tape {write}", input_bti, tape_bni, state_bi, resets_bt)
    check_kernel_call(write, backend, input_bti, matrix_pi, tape_bni, state_bi)
    given = Inputs(input_bti, matrix_pi, tape_bni, state_bi)
    return KERNELS[backend].forward(write, given, keep, resets_bt)


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


def check_kernel_call(
    write: str,
    backend: str,
    input_bti: Tensor,
    matrix_pi: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
) -> None:
    """Compare every tensor with what the kernel reads, which looks at no shape itself.

    Raises:
        ValueError: one has another shape, dtype or device, or there is no channel or no slot.
    """
    of, like = f"tape {write}", state_bi
    batch, width = like.shape
    if width < 1 or tape_bni.shape[1] < 1:
        raise ValueError(f"{of}: expected at least one channel and one slot")
    shapes: dict[str, tuple[Tensor, Shape]] = {
        "input": (input_bti, (batch, input_bti.shape[1], width)),
        "matrices": (matrix_pi, (compiled_cell(write).blocks * width, width)),
        "tape": (tape_bni, (batch, tape_bni.shape[1], width)),
    }
    for name, (tensor, shape) in shapes.items():
        narrow = KERNELS[backend].narrow and tensor is input_bti
        dtype = input_bti.dtype if narrow else like.dtype
        check(f"{name} of {of}", tensor, shape, like.device, (dtype,))


@tape.register_fake
def _(
    write: str,
    backend: str,
    keep: bool,
    input_bti: Tensor,
    matrix_pi: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
    resets_bt: Tensor | None,
) -> Outputs:
    return room(write, Inputs(input_bti, matrix_pi, tape_bni, state_bi), keep)


@operator("tape_backward")
def tape_backward(
    write: str,
    backend: str,
    dy_bti: Tensor | None,
    dtape_bni: Tensor | None,
    dstate_bi: Tensor | None,
    matrix_pi: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
    y_bti: Tensor,
    weights_btan: Tensor,
    values_bti: Tensor,
    checkpoints_cbni: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of input, matrices, first tape and first state."""
    given = (matrix_pi, tape_bni, state_bi)
    kept = (y_bti, weights_btan, values_bti, checkpoints_cbni)
    return _backward(write, backend, (dy_bti, dtape_bni, dstate_bi), resets_bt, *given, *kept)


def _backward(
    write: str,
    backend: str,
    pulls: Pulls,
    resets_bt: Tensor | None,
    matrix_pi: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
    y_bti: Tensor,
    *kept: Tensor,
) -> Inputs:
    # Of the input only the shape is read, and nothing of the last tape and state: the states, the
    # first tape and the first state stand in their places.
    given = Inputs(y_bti, matrix_pi, tape_bni, state_bi)
    results = Results(y_bti, tape_bni, state_bi, *kept)
    return KERNELS[backend].backward(write, *pulls, given, results, resets_bt)


@tape_backward.register_fake
def _(
    write: str,
    backend: str,
    dy_bti: Tensor | None,
    dtape_bni: Tensor | None,
    dstate_bi: Tensor | None,
    matrix_pi: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
    y_bti: Tensor,
    *kept: Tensor | None,
) -> Gradients:
    read = (y_bti, matrix_pi, tape_bni, state_bi)
    return Inputs(*(one.new_empty(one.shape) for one in read))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    ctx.write, ctx.backend, _, _, *given, resets_bt = inputs
    y_bti, _, _, *kept = output
    ctx.save_for_backward(*given, y_bti, *kept, resets_bt)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, pulls: Pulls, *, plain: bool) -> Gradients:
    """Return the gradients of input, matrices, first tape and first state.

    Args:
        ctx: As :func:`_setup` left it.
        pulls: Gradients of the states, the last tape and the last state.
        plain: Whether a plain call may compute them, where no operator is seen.
    """
    *saved, resets_bt = ctx.saved_tensors
    if plain and backward_is_plain((*saved, *pulls)):
        return _backward(ctx.write, ctx.backend, pulls, resets_bt, *saved)
    found: Gradients = tape_backward(ctx.write, ctx.backend, *pulls, *saved, resets_bt)
    return found


def _differentiate_operator(
    ctx: Any,
    dy_bti: Tensor | None,
    dtape_bni: Tensor | None,
    dstate_bi: Tensor | None,
    *rest: Tensor | None,
) -> tuple[Tensor | None, ...]:
    found = _differentiate(ctx, (dy_bti, dtape_bni, dstate_bi), plain=False)
    return None, None, None, *found, None


register_gradient("tape", _differentiate_operator, _setup)
# The state's precision is the engine's: what autocast made of the projections is widened.
tape.register_autocast("cpu", torch.float32)


class Tape(OperatorFunction):
    """The operator :func:`tape` where nobody looks; what is kept stays inside."""

    @staticmethod
    def forward(
        ctx: Any, write: str, backend: str, resets_bt: Tensor | None, *given: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the kernel on input, matrices, first tape and first state."""
        outputs = KERNELS[backend].forward(write, Inputs(*given), True, resets_bt)
        _setup(ctx, (write, backend, True, *given, resets_bt), outputs)
        return outputs[:3]

    @staticmethod
    def backward(
        ctx: Any, dy_bti: Tensor | None, dtape_bni: Tensor | None, dstate_bi: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Run the kernel of the backward pass."""
        found = _differentiate(ctx, (dy_bti, dtape_bni, dstate_bi), plain=True)
        return None, None, None, *found


def run(
    write: str,
    backend: str,
    input_bti: Tensor,
    matrix_pi: Tensor,
    tape_bni: Tensor,
    state_bi: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first three outputs of :func:`tape`, by an operator only where it is seen."""
    tensors = (input_bti, matrix_pi, tape_bni, state_bi)
    keep = keeps(tensors)
    if operators_are_seen((*tensors, resets_bt)):
        y_bti, last_bni, last_bi, *_ = tape(write, backend, keep, *tensors, resets_bt)
        return y_bti, last_bni, last_bi
    if not keep:
        return KERNELS[backend].forward(write, Inputs(*tensors), False, resets_bt)[:3]
    outputs: tuple[Tensor, Tensor, Tensor] = apply(Tape, write, backend, resets_bt, *tensors)
    return outputs
