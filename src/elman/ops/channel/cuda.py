"""One call of a channel kernel on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: b batch, t time, c channels of the state, s all channels of a source, k segments.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.errors import UserError
from elman.kernels import nvrtc
from elman.kernels.nvrtc import Unit
from elman.ops.channel.arguments import ChannelArgs, ChannelSequence, pointers, sequence
from elman.ops.channel.cells import compiled_cell
from elman.ops.channel.cpu import adjacent, gradient_room
from elman.ops.channel.kernels import spec_for
from elman.ops.channel.plan import Plan

SEGMENT = 8
"""Steps between two kept states: all that the backward pass knows of them stays in registers."""
_THREADS = 128  # as in csrc/cuda/channel.cuh
_ROWS = _THREADS // 32
_IO = {torch.bfloat16: "elman::bf16", torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class Pass:
    """What one pass of a plan launches: kernels in order, and how many threads each needs.

    Args:
        kernels: Names.
        threads: Numbers of threads.
    """

    kernels: tuple[str, ...]
    threads: tuple[int, ...]


def n_segments(steps: int) -> int:
    """Return how many states a call keeps for its backward pass."""
    return math.ceil(steps / SEGMENT)


def forward(
    plan: Plan, sources_bts: Sequence[Tensor], parameters_c: Sequence[Tensor], state_bc: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output [B, T, C], the last state, and the states before every segment."""
    batch, steps, _ = sources_bts[0].shape
    channels = state_bc.shape[1]
    y_btc = sources_bts[0].new_empty(batch, steps, channels)
    last_bc = state_bc.new_empty(batch, channels)
    kept_bkc = state_bc.new_empty(batch, n_segments(steps), channels)
    call = _Call(plan, sources_bts, parameters_c, state_bc)
    call.args.y = sequence(y_btc)
    call.point(first=state_bc.contiguous(), last=last_bc, checkpoints=kept_bkc)
    call.run(backward=False)
    return y_btc, last_bc, kept_bkc


def backward(
    plan: Plan,
    dy_btc: Tensor | None,
    dlast_bc: Tensor | None,
    sources_bts: Sequence[Tensor],
    parameters_c: Sequence[Tensor],
    kept_bkc: Tensor,
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradients of the sources, of the parameters and of the first state."""
    batch, _, channels = kept_bkc.shape
    dfirst_bc = kept_bkc.new_empty(batch, channels)
    dparameters_c = [parameter.new_empty(channels) for parameter in parameters_c]
    dsources_bts = [
        gradient_room(plan, n, source, channels) for n, source in enumerate(sources_bts)
    ]
    call = _Call(plan, sources_bts, parameters_c, kept_bkc)
    for slot, place in enumerate(plan.slices()):
        call.args.dx[slot] = sequence(dsources_bts[place.source], place.start)
    call.args.dp = pointers(dparameters_c)
    call.point(dfirst=dfirst_bc, checkpoints=kept_bkc)
    if dy_btc is not None:
        call.args.dy = sequence(call.keep(adjacent(dy_btc)))
    if dlast_bc is not None:
        call.point(dlast=dlast_bc.contiguous())
    call.run(backward=True)
    return dsources_bts, dparameters_c, dfirst_bc


class _Call:
    """The arguments of one call, and the tensors that they point to."""

    def __init__(
        self,
        plan: Plan,
        sources_bts: Sequence[Tensor],
        parameters_c: Sequence[Tensor],
        like: Tensor,
    ) -> None:
        assert len(parameters_c) == len(compiled_cell(plan.step).parameters), plan
        batch, steps, _ = sources_bts[0].shape
        self.plan, self.dtype, self.like = plan, sources_bts[0].dtype, like
        self.kept: list[Tensor] = []
        self.args = ChannelArgs(
            batch=batch,
            steps=steps,
            channels=like.shape[-1],
            segment=SEGMENT,
            p=pointers([self.keep(parameter.contiguous()) for parameter in parameters_c]),
        )
        sources = [self.keep(adjacent(source)) for source in sources_bts]
        for slot, place in enumerate(plan.slices()):
            self.args.x[slot] = sequence(sources[place.source], place.start)

    def keep(self, tensor: Tensor) -> Tensor:
        """Hold a tensor until the call is over."""
        self.kept.append(tensor)
        return tensor

    def point(self, **tensors: Tensor) -> None:
        """Set arguments that are one contiguous tensor each."""
        for name, tensor in tensors.items():
            setattr(self.args, name, self.keep(tensor).data_ptr())

    def run(self, *, backward: bool) -> None:
        """Launch a pass in a workspace of the size that it needs."""
        args, plan = self.args, self.plan
        rows = args.batch * args.steps
        numbers = len(compiled_cell(plan.step).parameters) * args.batch * args.channels
        if plan.unit is not None:
            numbers += rows * (1 + args.channels)
        self.point(workspace=self.like.new_empty(numbers))
        LAUNCH(unit_text(plan, self.dtype, self.like.dtype), passes(plan, args, backward), self)


def passes(plan: Plan, args: ChannelArgs, backward: bool) -> Pass:
    """Return what a pass launches."""
    rows, channels = args.batch * args.steps * 32, args.batch * args.channels
    unit = plan.unit is not None
    parameters = len(compiled_cell(plan.step).parameters)
    kernels = {"channel_norms": rows} if unit else {}
    kernels["channel_backward" if backward else "channel_forward"] = channels
    if backward and unit:
        kernels["channel_norms_backward"] = rows
    if backward and parameters:
        kernels["channel_finish"] = parameters * args.channels
    return Pass(tuple(kernels), tuple(kernels.values()))


@cache
def unit_text(
    plan: Plan, io: torch.dtype, state: torch.dtype, device: str = "cuda/device.cuh"
) -> str:
    """Return the text of a plan's translation unit, all passes in one.

    Args:
        plan: What is computed.
        io: Dtype of the sequences.
        state: Dtype of everything else.
        device: Header that says what the kernels ask of the machine.

    Raises:
        UserError: there is no kernel for the step.
    """
    spec = spec_for(plan, state)
    kernels = ["forward", "backward"]
    kernels += ["finish"] if compiled_cell(plan.step).parameters else []
    kernels += ["norms", "norms_backward"] if plan.unit is not None else []
    sizes = {"ChannelArgs": ChannelArgs, "ChannelSequence": ChannelSequence}
    return "\n".join(
        [
            f'#include "{device}"',
            '#include "cuda/channel.cuh"',
            "namespace elman {",
            spec.structure("Spec") + "}  // namespace elman",
            f"using G = elman::ChannelGeometry<elman::Spec, {_IO[io]}, {SEGMENT}>;",
            *(
                f'static_assert(sizeof(elman::{name}) == {ctypes.sizeof(mirror)}, "arguments.py");'
                for name, mirror in sizes.items()
            ),
            *(
                f"ELMAN_KERNEL(channel_{name}, G::THREADS, G::BLOCKS, elman::ChannelArgs, "
                f"elman::channel_{name}<G>(a))"
                for name in kernels
            ),
            "",
        ]
    )


def _launch(text: str, wanted: Pass, call: _Call) -> None:
    """Launch kernels on the current stream of the call's device."""
    if call.dtype not in (torch.bfloat16, torch.float32):
        raise UserError(
            f"kernels.backend=cuda: computes on bfloat16 and float32, not on {call.dtype}; "
            "use kernels.backend=reference"
        )
    device = call.like.device
    with torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability(device)
        fast = call.dtype == torch.bfloat16
        kernels = nvrtc.load(Unit(text, call.plan.step, f"sm_{major}{minor}", fast))
        for name, threads in zip(wanted.kernels, wanted.threads, strict=True):
            kernels.launch(
                name,
                blocks=math.ceil(threads / _THREADS),
                threads=_THREADS,
                shared_bytes=0,
                arguments=call.args,
                device=device.index,
                stream=torch.cuda.current_stream(device).cuda_stream,
            )


LAUNCH: Callable[[str, Pass, _Call], None] = _launch
"""Runs the kernels of a pass; tests put the emulator here."""
