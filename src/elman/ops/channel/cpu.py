"""One call of a channel kernel on the CPU: from tensors to pointers and back.

Shape legend: b batch, t time, c channels of the state, s all channels of a source, k checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.kernels.threads import kernel_threads
from elman.ops.channel.abi import ChannelArgs, pointers, sequence
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import compiled_cell
from elman.ops.channel.source import kernel_for
from elman.ops.common.backend import require_cpu
from elman.ops.common.cpu_kernels import CpuArguments

SEGMENT = 16
"""Steps between two checkpoints. The checkpoints take a sixteenth of one sequence's memory. To
compute a segment again takes a workspace (64 to 160 KiB a thread) that stays in the cache."""


def n_segments(steps: int) -> int:
    """Return how many checkpoints a call keeps for its backward pass."""
    return (steps + SEGMENT - 1) // SEGMENT


def forward(
    plan: Plan,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    state_bc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output [B, T, C], the last state and the checkpoints.

    Raises:
        UserError: the tensors do not lie on the CPU, or the kernel cannot be compiled.
    """
    require_cpu(state_bc)
    batch, steps, _ = sources_bts[0].shape
    channels = state_bc.shape[1]
    y_btc = state_bc.new_empty(batch, steps, channels)
    last_bc = state_bc.new_empty(batch, channels)
    checkpoints_bkc = state_bc.new_empty(batch, n_segments(steps), channels)
    kernel = _KernelCall(plan, sources_bts, parameters_c, channels, resets_bt)
    kernel.args.y = sequence(y_btc)
    kernel.point(first=state_bc, last=last_bc, checkpoints=checkpoints_bkc)
    kernel.run(kernel.compiled.forward)
    return y_btc, last_bc, checkpoints_bkc


def backward(
    plan: Plan,
    dy_btc: Tensor | None,
    dlast_bc: Tensor | None,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    checkpoints_bkc: Tensor,
    resets_bt: Tensor | None,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients of the sources, of the parameters and of the first state."""
    batch, _, channels = checkpoints_bkc.shape
    dfirst_bc = checkpoints_bkc.new_empty(batch, channels)
    dparameters_c = [parameter.new_empty(channels) for parameter in parameters_c]
    dsources_bts = [
        gradient_room(plan, n, source, channels) for n, source in enumerate(sources_bts)
    ]
    kernel = _KernelCall(plan, sources_bts, parameters_c, channels, resets_bt)
    for slot, place in enumerate(plan.slices()):
        kernel.args.dx[slot] = sequence(dsources_bts[place.source], place.start)
    kernel.args.dp = pointers(dparameters_c)
    kernel.point(dfirst=dfirst_bc, checkpoints=checkpoints_bkc, dlast=dlast_bc)
    if dy_btc is not None:
        kernel.args.dy = sequence(kernel.keep(adjacent(dy_btc)))
    kernel.run(kernel.compiled.backward)
    return dsources_bts, dparameters_c, dfirst_bc


class _KernelCall(CpuArguments[ChannelArgs]):
    """The arguments of one call, and the tensors that they point to."""

    def __init__(
        self,
        plan: Plan,
        sources_bts: Sequence[Tensor],
        parameters_c: Sequence[Tensor],
        channels: int,
        resets_bt: Tensor | None,
    ) -> None:
        assert len(parameters_c) == len(compiled_cell(plan.step).parameters), plan
        assert all(parameter.shape == (channels,) for parameter in parameters_c), plan
        (batch, steps, _), like = sources_bts[0].shape, sources_bts[0]
        args = ChannelArgs(
            batch=batch,
            steps=steps,
            channels=channels,
            segment=SEGMENT,
            threads=kernel_threads(torch.get_num_threads()),
        )
        super().__init__(args, kernel_for(plan, like.dtype, resets=resets_bt is not None), like)
        args.p = pointers([self.keep(parameter.contiguous()) for parameter in parameters_c])
        self.point(resets=resets_bt)
        sources = [self.keep(adjacent(source)) for source in sources_bts]
        for slot, place in enumerate(plan.slices()):
            assert place.start + channels <= sources[place.source].shape[2], plan
            args.x[slot] = sequence(sources[place.source], place.start)


def adjacent(tensor_bts: Tensor) -> Tensor:
    """Return the tensor with its channels adjacent: as it is, or a copy."""
    return tensor_bts if tensor_bts.stride(-1) == 1 else tensor_bts.contiguous()


def gradient_room(plan: Plan, number: int, source_bts: Tensor, channels: int) -> Tensor:
    """Return a tensor for a source's gradient, 0 in columns that the plan does not read."""
    read = sum(place.source == number for place in plan.slices()) * channels
    # `empty_like` takes half of the time of `new_empty` with a shape.
    make = torch.empty_like if read == source_bts.shape[2] else torch.zeros_like
    return make(source_bts, memory_format=torch.contiguous_format)
