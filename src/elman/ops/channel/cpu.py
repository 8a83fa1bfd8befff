"""One call of a channel kernel on the CPU: from tensors to pointers and back.

Shape legend: b batch, t time, c channels of the state, s all channels of a source, k checkpoints.
"""

from __future__ import annotations

import torch

from elman.kernels.threads import kernel_threads
from elman.ops.channel.abi import ChannelArgs, pointers, sequence
from elman.ops.channel.passes import (
    Call,
    Gradients,
    Results,
    Saved,
    adjacent,
    gradient_room,
)
from elman.ops.channel.plan import parse
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


def forward(call: Call) -> Results:
    """Return the output, the last state and the checkpoints.

    Raises:
        UserError: the tensors do not lie on the CPU, or the kernel cannot be compiled.
    """
    state_bc = call.state_bc
    require_cpu(state_bc)
    (batch, steps, _), channels = call.sources_bts[0].shape, state_bc.shape[1]
    y_btc = state_bc.new_empty(batch, steps, channels)
    last_bc = state_bc.new_empty(batch, channels)
    checkpoints_bkc = state_bc.new_empty(batch, n_segments(steps), channels)
    kernel = _KernelCall(call, channels)
    kernel.args.y = sequence(y_btc)
    kernel.point(first=state_bc, last=last_bc, checkpoints=checkpoints_bkc)
    kernel.run(kernel.compiled.forward)
    return y_btc, last_bc, checkpoints_bkc


def backward(saved: Saved) -> Gradients:
    """Return the gradients of the sources, of the parameters and of the first state."""
    plan, checkpoints_bkc = parse(saved.plan), saved.checkpoints_bkc
    batch, _, channels = checkpoints_bkc.shape
    dfirst_bc = checkpoints_bkc.new_empty(batch, channels)
    dparameters_c = [parameter.new_empty(channels) for parameter in saved.parameters_c]
    dsources_bts = gradient_room(plan, saved.sources_bts, channels)
    kernel = _KernelCall(saved, channels)
    for slot, place in enumerate(plan.slices()):
        kernel.args.dx[slot] = sequence(dsources_bts[place.source], place.start)
    kernel.args.dp = pointers(dparameters_c)
    kernel.point(dfirst=dfirst_bc, checkpoints=checkpoints_bkc, dlast=saved.dlast_bc)
    if saved.dy_btc is not None:
        kernel.args.dy = sequence(kernel.keep(adjacent(saved.dy_btc)))
    kernel.run(kernel.compiled.backward)
    return dsources_bts, dparameters_c, dfirst_bc


class _KernelCall(CpuArguments[ChannelArgs]):
    """The arguments of one call, and the tensors that they point to."""

    def __init__(self, call: Call | Saved, channels: int) -> None:
        plan, sources_bts, parameters_c = parse(call.plan), call.sources_bts, call.parameters_c
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
        compiled = kernel_for(plan, like.dtype, resets=call.resets_bt is not None)
        super().__init__(args, compiled, like)
        args.p = pointers([self.keep(parameter.contiguous()) for parameter in parameters_c])
        self.point(resets=call.resets_bt)
        sources = [self.keep(adjacent(source)) for source in sources_bts]
        for slot, place in enumerate(plan.slices()):
            assert place.start + channels <= sources[place.source].shape[2], plan
            args.x[slot] = sequence(sources[place.source], place.start)
