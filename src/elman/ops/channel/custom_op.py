"""The channel engine as an operator, which autograd, autocast and torch.compile see.

Shape legend: b batch, t time, c channels of the state, s all channels of a source,
k checkpoints: the states before every segment of time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from elman.ops.channel import cpu
from elman.ops.channel.cuda import kernels
from elman.ops.channel.passes import Call, Gradients, Results, Saved, save
from elman.ops.channel.plan import Plan, parse
from elman.ops.channel.recurrences import CELLS, compiled_cell
from elman.ops.common.backend import Kernels
from elman.ops.common.checks import (
    Shape,
    check_kernel_tensors,
    check_parameters,
    check_resets,
    check_sequences,
    check_state,
)
from elman.ops.common.operator import Operator


@dataclass(frozen=True)
class ChannelKernels(Kernels[Call, Results, Saved, Gradients]):
    """What the operator asks of a compiled backend.

    Args:
        n_segments: How many checkpoints a call of so many steps has.
    """

    n_segments: Callable[[int], int] = cpu.n_segments


KERNELS: dict[str, ChannelKernels] = {
    "cpu": ChannelKernels(cpu.forward, cpu.backward),
    "cuda": ChannelKernels(kernels.forward, kernels.backward, n_segments=kernels.n_segments),
}
"""By the name of the backend."""


def forward(call: Call) -> Results:
    """Return the output in the sources' dtype, the last state and the checkpoints."""
    return KERNELS[call.backend].forward(call)


def backward(saved: Saved) -> Gradients:
    """Return the gradients of sources, parameters and first state."""
    return KERNELS[saved.backend].backward(saved)


def _fake(call: Call) -> Results:
    source_bts, state_bc = call.sources_bts[0], call.state_bc
    (batch, steps, _), channels = source_bts.shape, state_bc.shape[1]
    segments = KERNELS[call.backend].n_segments(steps)
    return (
        source_bts.new_empty(batch, steps, channels),
        state_bc.new_empty(batch, channels),
        state_bc.new_empty(batch, segments, channels),
    )


def _fake_backward(saved: Saved) -> Gradients:
    checkpoints_bkc = saved.checkpoints_bkc
    return (
        [source.new_empty(source.shape) for source in saved.sources_bts],
        [parameter.new_empty(parameter.shape) for parameter in saved.parameters_c],
        checkpoints_bkc.new_empty(checkpoints_bkc.shape[0], checkpoints_bkc.shape[2]),
    )


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
        sources_bts: As of :class:`Call`.
        parameters: By name; those of a step without a kernel may have any shape.
        state_bc: As of :class:`Call`.
        resets_bt: As of :class:`Call`.
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


def check_operator(call: Call) -> None:
    """Compare every tensor of an operator's call with what the kernel reads.

    Raises:
        ValueError: a tensor has another shape, dtype or device, or there is no row or no step.
    """
    plan = parse(call.plan)
    names = compiled_cell(plan.step).parameters
    given = dict(zip(names, call.parameters_c, strict=False))
    check_call(plan, call.sources_bts, given, call.state_bc, call.resets_bt, scalars=False)
    check_kernel_tensors(f"channel {plan.step}", call.sources_bts, call.parameters_c)


CHANNEL = Operator(
    "channel",
    Call,
    Saved,
    check=check_operator,
    forward=forward,
    fake=_fake,
    save=save,
    backward=backward,
    fake_backward=_fake_backward,
    incoming=("dy_btc", "dlast_bc"),
    gradients=("sources_bts", "parameters_c", "state_bc"),
    # The engine sets the state's precision: it widens projections that autocast made narrow.
    widens=("cpu",),
)
"""A plan on a compiled kernel: the output [B, T, C] in the sources' dtype, the state after the last
step, and the checkpoints [B, segments, C] that the backward pass starts from."""
