"""The matrix-state engine's kernels for NVIDIA GPUs: compiled by NVRTC at first use.

One kernel goes forward, one back; a third, small one sums what blocks leave behind where a head
has several of them, and the gradients of parameters. All run on PyTorch's current stream.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

from elman.kernels import launching
from elman.kernels.driver import Loaded, device_limits, load
from elman.kernels.launching import Launch, architecture
from elman.kernels.nvrtc import Unit
from elman.ops.common.native import CUDA_TYPES, require_cuda_dtype
from elman.ops.matrix_state.abi import Call, kept_dtype, layouts, row_bits
from elman.ops.matrix_state.cuda import heuristics
from elman.ops.matrix_state.cuda.heuristics import H200, choose, forward_of
from elman.ops.matrix_state.cuda.tile_config import LEAST_ALIGN, TileConfig, Types
from elman.ops.matrix_state.plan import Plan, parse
from elman.ops.matrix_state.source import spec_source

_FINISH_THREADS = 256  # as in csrc/cuda/matrix_state/finish.cuh
_exact = False


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Within it, bf16 kernels too use the CUDA library's tanh and division: for checks."""
    global _exact
    before, _exact = _exact, True
    try:
        yield
    finally:
        _exact = before


def segment(plan: Plan, batch: int, dtype: torch.dtype) -> int:
    """Return how many steps lie between two checkpoints."""
    return tile_config(plan.text, batch, dtype, backward=True).steps


@cache
def tile_config(plan_text: str, batch: int, dtype: torch.dtype, *, backward: bool) -> TileConfig:
    """Return how a pass of a plan runs on this machine's GPU."""
    plan = parse(plan_text)
    # Without a GPU shapes alone are asked for.
    here = device_limits(torch.cuda.current_device()) if torch.cuda.is_available() else H200
    chosen = choose(plan, types(plan, dtype), batch * plan.heads, here)
    return chosen if backward else forward_of(chosen, batch * plan.heads, here)


def calls_at_once(plan: Plan, batch: int, dtype: torch.dtype, device: int | None) -> float:
    """Return how many calls a GPU runs at a time, each about as fast as alone."""
    limits = H200 if device is None else device_limits(device)
    return heuristics.calls_at_once(plan, types(plan, dtype), batch, limits)


def types(plan: Plan, dtype: torch.dtype) -> Types:
    """Return the C++ types for sources of a dtype.

    Raises:
        UserError: there is no kernel for it.
    """
    require_cuda_dtype(dtype)
    return Types(CUDA_TYPES[dtype], "float", CUDA_TYPES[kept_dtype(plan, dtype)])


def launch(call: Call, *, backward: bool) -> None:
    """Run a call, forward or backward, on the current stream of its device.

    Raises:
        UserError: the kernel cannot be compiled or launched.
    """
    chosen = tile_config(call.plan.text, call.args.B, call.like.dtype, backward=backward)
    launch_as(call, chosen, backward=backward)


def launch_as(call: Call, chosen: TileConfig, *, backward: bool) -> None:
    """Run a call with a tile config that fits its sources or whose alignment is too wide for them.

    Raises:
        UserError: the kernel cannot be compiled or launched.
    """
    args, dtype, device = call.args, call.like.dtype, call.like.device.index
    align, fast = alignment(call, chosen, backward), dtype == torch.bfloat16 and not _exact
    ready = _ready(chosen, align, call.resets, backward, fast, device, args.B, args.T)
    if backward:
        call.give_workspace(ready.workspace_bytes)
    launching.launch(ready.kernels, ready.launches, args, device)


@dataclass(frozen=True)
class _Ready:
    """What a launch needs of its tile config; working that out takes longer than to launch."""

    kernels: Loaded
    launches: list[Launch]
    workspace_bytes: int


@cache
def _ready(
    chosen: TileConfig,
    align: int,
    resets: bool,
    backward: bool,
    fast: bool,
    device: int,
    batch: int,
    time: int,
) -> _Ready:
    """Prepare the launches of a pass for shapes."""
    chosen = replace(chosen, align=align, resets=resets)
    return _Ready(
        load(unit_of(chosen, backward, architecture(device), fast=fast)),
        launches(chosen, batch, time, backward),
        chosen.workspace_bytes(batch, time),
    )


def launches(chosen: TileConfig, batch: int, time: int, backward: bool) -> list[Launch]:
    """Return the launches of a pass."""
    blocks = batch * chosen.plan.heads * chosen.row_tiles
    if not backward:
        shares = chosen.shares
        of_gpu = (chosen.forward_threads * shares, chosen.forward_bytes * shares)
        return [Launch("matrix_forward", math.ceil(blocks / shares), *of_gpu)]
    passes = [Launch("matrix_backward", blocks, chosen.backward_threads, chosen.backward_bytes)]
    finishing = chosen.finish_threads(batch, time)
    if finishing:
        blocks = math.ceil(finishing / _FINISH_THREADS)
        passes.append(Launch("matrix_finish", blocks, _FINISH_THREADS))
    return passes


def alignment(call: Call, chosen: TileConfig, backward: bool) -> int:
    """Return the bytes, 16 at most, that everything which is read or written by rows lies on."""
    io = chosen.types.sizes[0]
    bits = chosen.align | row_bits(chosen.plan, call.words, io, backward=backward)
    return max(LEAST_ALIGN, bits & -bits)


@cache
def unit_of(chosen: TileConfig, backward: bool, architecture: str, *, fast: bool) -> Unit:
    """Return the translation unit of a pass."""
    label = f"{chosen.plan.label} {'backward' if backward else 'forward'}"
    return Unit(unit_text(chosen, backward), label, architecture, fast)


def unit_text(chosen: TileConfig, backward: bool, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a pass's translation unit.

    Args:
        chosen: The tile config.
        backward: Which pass.
        device: Header that says what the kernels ask of the machine.
    """
    types = chosen.types
    sources = ("backward", "finish") if backward else ("forward",)
    kernels = [f"matrix_{name}" for name in sources]
    bounds = {
        "matrix_forward": "G::FORWARD_THREADS",
        "matrix_backward": "G::BACKWARD_THREADS",
        "matrix_finish": str(_FINISH_THREADS),
    }
    return "\n".join(
        [
            *_shares(chosen, backward),
            f'#include "{device}"',
            *(f'#include "cuda/matrix_state/{name}.cuh"' for name in sources),
            spec_source(chosen.plan, "Spec", io=types.io, state=types.state, resets=chosen.resets),
            f"using G = {chosen.type_text()};",
            chosen.assertions(backward) + layouts(),
            *(
                f"ELMAN_KERNEL({name}, {bounds[name]}, 1, elman::Args, elman::{name}<G>(a))"
                for name in kernels
            ),
            "",
        ]
    )


def _shares(chosen: TileConfig, backward: bool) -> list[str]:
    """Return what device.cuh has to know of blocks that share one of the GPU's."""
    if backward or chosen.shares == 1:
        return []
    numbers = {"S": chosen.shares, "_WARPS": chosen.warps, "_BYTES": chosen.forward_bytes}
    return [f"#define ELMAN_SHARE{name} {number}" for name, number in numbers.items()]
