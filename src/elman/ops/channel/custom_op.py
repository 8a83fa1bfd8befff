"""The channel engine as custom operators, which autograd, autocast and torch.compile see.

Where nobody looks at operators, :class:`Channel` calls the same kernels without an operator.

Shape legend: b batch, t time, c channels of the state, s all channels of a source,
k checkpoints: the states before every segment of time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from elman.ops.channel import cpu
from elman.ops.channel.cuda import kernels
from elman.ops.channel.plan import Plan, parse
from elman.ops.channel.recurrences import CELLS, compiled_cell
from elman.ops.common.door import (
    Shape,
    check_kernel_tensors,
    check_parameters,
    check_resets,
    check_sequences,
    check_state,
)
from elman.ops.common.operators import apply, backward_is_plain, operators_are_seen
from elman.ops.common.transforms import OperatorFunction, operator, register_gradient


@dataclass(frozen=True)
class Kernels:
    """What the operators ask of a compiled backend.

    Args:
        forward: Returns the output, the last state and the checkpoints.
        backward: Returns the gradients of the sources, of the parameters and of the first state.
        n_segments: How many checkpoints a call of so many steps has.
    """

    forward: Callable[
        [Plan, Sequence[Tensor], Sequence[Tensor], Tensor, Tensor | None],
        tuple[Tensor, Tensor, Tensor],
    ]
    backward: Callable[
        [
            Plan,
            Tensor | None,
            Tensor | None,
            Sequence[Tensor],
            Sequence[Tensor],
            Tensor,
            Tensor | None,
        ],
        tuple[list[Tensor], list[Tensor], Tensor],
    ]
    n_segments: Callable[[int], int]


KERNELS: dict[str, Kernels] = {
    "cpu": Kernels(cpu.forward, cpu.backward, cpu.n_segments),
    "cuda": Kernels(kernels.forward, kernels.backward, kernels.n_segments),
}
"""By the name of the backend."""


@operator("channel")
def channel(
    plan: str,
    backend: str,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a plan of the channel engine on a compiled kernel.

    Args:
        plan: ``Plan.text``.
        backend: A key of :data:`KERNELS`.
        sources_bts: Sequences of one dtype. On a CPU everything else has this dtype, too.
        parameters_c: The step's parameters in the order of :mod:`elman.ops.channel.recurrences`.
        state_bc: State before the first step.
        resets_bt: Whether the state before a step is zero, bool; None: it never is.

    Returns:
        The output [B, T, C] in the sources' dtype, the state after the last step, and the
        checkpoints [B, segments, C] that the backward pass starts from.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
        UserError: the backend cannot read the tensors' device or dtype.
    """
    parsed = parse(plan)
    names = compiled_cell(parsed.step).parameters
    given = dict(zip(names, parameters_c, strict=False))
    check_call(parsed, sources_bts, given, state_bc, resets_bt, scalars=False)
    check_kernel_tensors(f"channel {parsed.step}", sources_bts, parameters_c)
    return _forward(plan, backend, sources_bts, parameters_c, state_bc, resets_bt)


def check_call(
    plan: Plan,
    sources_bts: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
    *,
    scalars: bool = True,
) -> None:
    """Compare the tensors of a call with the plan.

    Args:
        plan: What is computed.
        sources_bts: As for :func:`channel`.
        parameters: By name; those of a step without a kernel may have any shape.
        state_bc: As for :func:`channel`.
        resets_bt: As for :func:`channel`.
        scalars: Whether parameters that are one number are given as one, and not for all channels.

    Raises:
        ValueError: one has another shape, dtype or device than the plan asks for.
    """
    of = f"channel {plan.step}"
    # Every slice has the state's width, which the first source's batch stands before.
    channels = state_bc.shape[-1] if state_bc.ndim else 0
    check_sequences(of, sources_bts, [start + channels for start in plan.starts])
    source_bts = sources_bts[0]
    check_state("state", of, state_bc, (source_bts.shape[0], channels), source_bts)
    check_resets(of, resets_bt, source_bts)
    if plan.step in CELLS:
        check_parameters(of, parameters, _shapes(plan.step, channels, scalars), source_bts.device)


@cache
def _shapes(step: str, channels: int, scalars: bool) -> dict[str, Shape]:
    """Return the shapes of a compiled step's parameters, those of one number too if ``scalars``."""
    cell = compiled_cell(step)
    single = cell.scalars if scalars else ()
    return {name: (1,) if name in single else (channels,) for name in cell.parameters}


def _forward(
    plan: str,
    backend: str,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return KERNELS[backend].forward(parse(plan), sources_bts, parameters_c, state_bc, resets_bt)


@channel.register_fake
def _(
    plan: str,
    backend: str,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, steps, _ = sources_bts[0].shape
    channels = state_bc.shape[1]
    segments = KERNELS[backend].n_segments(steps)
    return (
        sources_bts[0].new_empty(batch, steps, channels),
        state_bc.new_empty(batch, channels),
        state_bc.new_empty(batch, segments, channels),
    )


@operator("channel_backward")
def channel_backward(
    plan: str,
    backend: str,
    dy_btc: Tensor | None,
    dlast_bc: Tensor | None,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    checkpoints_bkc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients of sources, parameters and first state."""
    given = (dy_btc, dlast_bc, sources_bts, parameters_c, checkpoints_bkc, resets_bt)
    return _backward(plan, backend, *given)


def _backward(
    plan: str,
    backend: str,
    dy_btc: Tensor | None,
    dlast_bc: Tensor | None,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    checkpoints_bkc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    given = (dy_btc, dlast_bc, sources_bts, parameters_c, checkpoints_bkc, resets_bt)
    return KERNELS[backend].backward(parse(plan), *given)


@channel_backward.register_fake
def _(
    plan: str,
    backend: str,
    dy_btc: Tensor | None,
    dlast_bc: Tensor | None,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    checkpoints_bkc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    return (
        [source.new_empty(source.shape) for source in sources_bts],
        [parameter.new_empty(parameter.shape) for parameter in parameters_c],
        checkpoints_bkc.new_empty(checkpoints_bkc.shape[0], checkpoints_bkc.shape[2]),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.plan, ctx.backend, sources_bts, parameters_c, _, resets_bt = inputs
    ctx.n_sources = len(sources_bts)
    ctx.save_for_backward(*sources_bts, *parameters_c, output[2], resets_bt)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, dy_btc: Tensor | None, dlast_bc: Tensor | None, *, plain: bool
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients of sources, parameters and first state.

    Args:
        ctx: As :func:`_setup` left it.
        dy_btc: Gradient of the output.
        dlast_bc: Gradient of the last state.
        plain: Whether a plain call may compute them, where no operator is seen.
    """
    *tensors, checkpoints_bkc, resets_bt = ctx.saved_tensors
    plain = plain and backward_is_plain((*tensors, dy_btc, dlast_bc, resets_bt))
    sources_bts, parameters_c = tensors[: ctx.n_sources], tensors[ctx.n_sources :]
    given = (dy_btc, dlast_bc, sources_bts, parameters_c, checkpoints_bkc, resets_bt)
    return (_backward if plain else channel_backward)(ctx.plan, ctx.backend, *given)


def _differentiate_operator(
    ctx: Any, dy_btc: Tensor | None, dlast_bc: Tensor | None, _: Tensor | None
) -> tuple[None, None, list[Tensor], list[Tensor], Tensor, None]:
    return None, None, *_differentiate(ctx, dy_btc, dlast_bc, plain=False), None


register_gradient("channel", _differentiate_operator, _setup)
# The engine sets the state's precision: it widens projections that autocast made narrow.
channel.register_autocast("cpu", torch.float32)


class Channel(OperatorFunction):
    """The operator :func:`channel` where nobody looks. The checkpoints stay inside."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: str,
        backend: str,
        n_sources: int,
        resets_bt: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run the kernel on sources, parameters and the first state, in this order."""
        sources_bts, parameters_c = tensors[:n_sources], tensors[n_sources:-1]
        inputs = (plan, backend, sources_bts, parameters_c, tensors[-1], resets_bt)
        outputs = _forward(*inputs)
        _setup(ctx, inputs, outputs)
        return outputs[:2]

    @staticmethod
    def backward(
        ctx: Any, dy_btc: Tensor | None, dlast_bc: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Run the kernels of the backward pass."""
        dsources_bts, dparameters_c, dfirst_bc = _differentiate(ctx, dy_btc, dlast_bc, plain=True)
        return None, None, None, None, *dsources_bts, *dparameters_c, dfirst_bc


def run(
    plan: str,
    backend: str,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the first two outputs of :func:`channel`, by an operator only where it is seen."""
    tensors = (*sources_bts, *parameters_c, state_bc)
    if not operators_are_seen((*tensors, resets_bt)):
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            outputs: tuple[Tensor, Tensor] = apply(
                Channel, plan, backend, len(sources_bts), resets_bt, *tensors
            )
            return outputs
        return _forward(plan, backend, sources_bts, parameters_c, state_bc, resets_bt)[:2]
    y_btc, last_bc, _ = channel(plan, backend, sources_bts, parameters_c, state_bc, resets_bt)
    return y_btc, last_bc
