"""One call of a channel kernel on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: b batch, t time, c channels of the state, s all channels of a source, k segments.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.channel.abi import N_WORDS, SEQUENCE_WORDS, WORDS, ChannelArgs
from elman.ops.channel.cuda.tile_config import (
    LANES,
    TileConfig,
    Tuning,
    copy_unit,
    row_config,
    static_checks,
)
from elman.ops.channel.passes import (
    Call,
    Gradients,
    Results,
    Saved,
    adjacent,
    gradient_room,
)
from elman.ops.channel.plan import Plan, parse
from elman.ops.channel.recurrences import compiled_cell
from elman.ops.channel.source import spec_for
from elman.ops.common.cuda_kernels import CudaKernels
from elman.ops.common.native import ENGINE_TYPES, require_cuda_dtype

TUNING = Tuning()
"""How every call runs; tools/gpu/channel.py puts others here."""
_OVER_TIME = ("channel_forward", "channel_backward")


def n_segments(steps: int) -> int:
    """Return how many states a call keeps for its backward pass."""
    return math.ceil(steps / TUNING.steps)


def forward(call: Call) -> Results:
    """Return the output, the last state, and the states before every segment."""
    plan, sources_bts, state_bc = parse(call.plan), call.sources_bts, call.state_bc
    (batch, steps, _), channels = sources_bts[0].shape, state_bc.shape[1]
    y_btc = sources_bts[0].new_empty(batch, steps, channels)
    last_bc = _room(state_bc)
    checkpoints_bkc = state_bc.new_empty(batch, n_segments(steps), channels)
    kernel = _KernelCall(plan, sources_bts, call.parameters_c, state_bc, call.resets_bt)
    kernel.put("y", y_btc)
    kernel.point(first=state_bc.contiguous(), last=last_bc, checkpoints=checkpoints_bkc)
    kernel.run(backward=False)
    return y_btc, last_bc, checkpoints_bkc


def backward(saved: Saved) -> Gradients:
    """Return the gradients of the sources, of the parameters and of the first state."""
    plan, sources_bts, parameters_c = parse(saved.plan), saved.sources_bts, saved.parameters_c
    checkpoints_bkc = saved.checkpoints_bkc
    batch, _, channels = checkpoints_bkc.shape
    dfirst_bc = checkpoints_bkc.new_empty(batch, channels)
    dparameters_c = [_room(parameter) for parameter in parameters_c]
    dsources_bts = gradient_room(plan, sources_bts, channels)
    kernel = _KernelCall(plan, sources_bts, parameters_c, checkpoints_bkc, saved.resets_bt)
    for slot, place in enumerate(plan.slices()):
        kernel.put("dx", dsources_bts[place.source], slot, place.start)
    kernel.put_parameters("dp", dparameters_c)
    kernel.point(dfirst=dfirst_bc, checkpoints=checkpoints_bkc)
    if saved.dy_btc is not None:
        kernel.put("dy", kernel.keep(adjacent(saved.dy_btc)))
    if saved.dlast_bc is not None:
        kernel.point(dlast=saved.dlast_bc.contiguous())
    kernel.run(backward=True)
    return dsources_bts, dparameters_c, dfirst_bc


def _room(tensor: Tensor) -> Tensor:
    """Return room for as many numbers."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


class _KernelCall:
    """The arguments of one call, and the tensors that they point to.

    Attributes:
        args: The arguments.
        words: The same memory as numbers.
        kept: Tensors that the call has to itself.
    """

    def __init__(
        self,
        plan: Plan,
        sources_bts: Sequence[Tensor],
        parameters_c: Sequence[Tensor],
        like: Tensor,
        resets_bt: Tensor | None = None,
    ) -> None:
        assert len(parameters_c) == len(compiled_cell(plan.step).parameters), plan
        batch, steps, _ = sources_bts[0].shape
        channels = like.shape[-1]
        self.plan, self.dtype, self.like = plan, sources_bts[0].dtype, like
        self.kept: list[Tensor] = []
        words = self.words = array("q", bytes(8 * N_WORDS))
        self.args = ChannelArgs.from_buffer(words)
        words[WORDS["batch"]], words[WORDS["steps"]] = batch, steps
        words[WORDS["channels"]], words[WORDS["segment"]] = channels, TUNING.steps
        self.resets = resets_bt is not None
        if resets_bt is not None:
            self.point(resets=resets_bt.contiguous())
        self.put_parameters("p", [self.keep(p.contiguous()) for p in parameters_c])
        sources = [self.keep(adjacent(source)) for source in sources_bts]
        assert all(source.shape[:2] == (batch, steps) for source in sources), plan
        for slot, place in enumerate(plan.slices()):
            assert place.start + channels <= sources[place.source].shape[2], plan
            self.put("x", sources[place.source], slot, place.start)

    def keep(self, tensor: Tensor) -> Tensor:
        """Hold a tensor until the call is over."""
        self.kept.append(tensor)
        return tensor

    def put(self, name: str, tensor_btc: Tensor, slot: int = 0, start: int = 0) -> None:
        """Set a sequence to the channels of a tensor from ``start`` on."""
        at = WORDS[name] + len(SEQUENCE_WORDS) * slot
        words, (batch, time, _) = self.words, tensor_btc.stride()
        words[at] = tensor_btc.data_ptr() + start * tensor_btc.element_size()
        words[at + 1], words[at + 2] = batch, time

    def put_parameters(self, name: str, tensors_c: Sequence[Tensor]) -> None:
        """Set where parameters or their gradients lie."""
        for at, tensor_c in enumerate(tensors_c, WORDS[name]):
            assert tensor_c.shape == self.like.shape[-1:], self.plan
            self.words[at] = tensor_c.data_ptr()

    def point(self, **tensors: Tensor) -> None:
        """Set arguments that are one contiguous tensor each."""
        for name, tensor in tensors.items():
            self.words[WORDS[name]] = self.keep(tensor).data_ptr()

    def run(self, *, backward: bool) -> None:
        """Launch a pass in a workspace of the size that it needs."""
        args, tile_config = self.args, self.tile_config(backward=backward)
        ready = _ready(tile_config, args.batch, args.steps, args.channels, backward)
        self.point(workspace=self.like.new_empty(ready.workspace))
        LAUNCH(tile_config, ready.launches, self)

    def tile_config(self, *, backward: bool) -> TileConfig:
        """Return how a pass runs."""
        unit = copy_unit(self.words, self.dtype, backward)
        sizes = (TUNING, unit, self.like.shape[-1])
        return tile_config_for(self.plan, self.dtype, self.like.dtype, *sizes, resets=self.resets)


def tile_config_for(
    plan: Plan,
    io: torch.dtype,
    state: torch.dtype,
    tuning: Tuning,
    unit: int,
    channels: int,
    *,
    resets: bool = False,
) -> TileConfig:
    """Return how a plan over so many channels runs.

    Raises:
        UserError: its step has a norm over more channels than a block has room for.
    """
    # Only a norm's kernels are compiled for a number of channels.
    rows = channels if compiled_cell(plan.step).norm else 0
    return _tile_config(plan, io, state, tuning, unit, rows, resets)


@cache
def _tile_config(
    plan: Plan,
    io: torch.dtype,
    state: torch.dtype,
    tuning: Tuning,
    unit: int,
    rows: int,
    resets: bool,
) -> TileConfig:
    tile_config = TileConfig(plan, io, state, tuning, unit, resets=resets)
    return row_config(tile_config, rows) if rows else tile_config


@dataclass(frozen=True)
class _Ready:
    """What a pass over shapes takes; working it out takes longer than to launch it."""

    launches: list[Launch]
    workspace: int


@cache
def _ready(
    tile_config: TileConfig, batch: int, steps: int, channels: int, backward: bool
) -> _Ready:
    """Prepare a pass over shapes."""
    # As ChannelSpace lays it out: what the backward pass alone needs stands last.
    rows = batch * steps if tile_config.plan.unit is not None else 0
    numbers = batch * LANES + 2 * rows
    if backward:
        parameters = len(compiled_cell(tile_config.plan.step).parameters)
        again = batch * tile_config.tuning.steps if tile_config.per else 0
        numbers += (rows + parameters * batch + again) * channels
    args = ChannelArgs(batch=batch, steps=steps, channels=channels)
    return _Ready(launches(tile_config, args, backward), numbers)


def launches(tile_config: TileConfig, args: ChannelArgs, backward: bool) -> list[Launch]:
    """Return the kernels of a pass in their order, but for those that have nothing to do."""
    plan, warps = tile_config.plan, tile_config.tuning.warps
    unit = plan.unit is not None
    rows = math.ceil(args.batch * args.steps / warps)
    parameters = len(compiled_cell(plan.step).parameters)
    blocks = {"channel_norms": rows} if unit else {}
    over_time = args.batch
    if not tile_config.per:
        over_time = math.ceil(args.batch * math.ceil(args.channels / LANES) / warps)
    blocks[_OVER_TIME[backward]] = over_time
    if backward and unit:
        blocks["channel_norms_backward"] = rows
    if backward and parameters:
        blocks["channel_finish"] = math.ceil(parameters * args.channels / tile_config.threads)
    shared = {_OVER_TIME[backward]: tile_config.shared_bytes(backward)}
    return [
        Launch(name, n, tile_config.threads, shared.get(name, 0)) for name, n in blocks.items() if n
    ]


@cache
def unit_text(tile_config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a translation unit, all passes in one.

    Args:
        tile_config: What is computed, and how it runs.
        device: Header that says what the kernels ask of the machine.

    Raises:
        UserError: there is no kernel for the step.
    """
    plan, tuning = tile_config.plan, tile_config.tuning
    spec = spec_for(plan, tile_config.state, resets=tile_config.resets)
    names = ["finish"] if compiled_cell(plan.step).parameters else []
    names += ["norms", "norms_backward"] if plan.unit is not None else []
    kernels = {"backward": "BACKWARD_BLOCKS", **dict.fromkeys(["forward", *names], "BLOCKS")}
    sizes = [tuning.steps, tuning.stages, tuning.warps, tile_config.unit]
    sizes += [tile_config.per] if tile_config.per else []
    arguments = ", ".join(["elman::Spec", ENGINE_TYPES[tile_config.io], *map(str, sizes)])
    kind, over_time = ("Row", "row_") if tile_config.per else ("Tile", "")
    functions = dict.fromkeys(names) | {"forward": over_time, "backward": over_time}
    return "\n".join(
        [
            f'#include "{device}"',
            f'#include "cuda/channel/{"rows" if tile_config.per else "passes"}.cuh"',
            '#include "cuda/channel/unit.cuh"',
            "namespace elman {",
            spec.structure("Spec") + "}  // namespace elman",
            f"using G = elman::Channel{kind}Config<{arguments}>;",
            static_checks(tile_config),
            *(
                f"ELMAN_KERNEL(channel_{name}, G::THREADS, G::{blocks}, elman::ChannelArgs, "
                f"elman::channel_{functions[name] or ''}{name}<G>(a))"
                for name, blocks in kernels.items()
            ),
            "",
        ]
    )


COMPILED: CudaKernels[TileConfig] = CudaKernels(
    unit_text,
    lambda tile_config: tile_config.plan.step,
    fast=lambda tile_config: tile_config.io == torch.bfloat16,
)


def _launch(tile_config: TileConfig, wanted: Sequence[Launch], call: _KernelCall) -> None:
    """Launch kernels on the current stream of the call's device."""
    require_cuda_dtype(call.dtype)
    COMPILED.launch(tile_config, wanted, call.args, call.like.device)


LAUNCH: Callable[[TileConfig, Sequence[Launch], _KernelCall], None] = _launch
"""Runs the kernels of a pass; tests put the emulator here."""
