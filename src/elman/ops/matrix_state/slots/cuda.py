"""One call of E63m's kernels on an NVIDIA GPU, on PyTorch's current stream."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels.launching import Launch
from elman.ops.common.cuda_kernels import CudaKernels
from elman.ops.matrix_state.slots.abi import SlotsArgs, layout

_MOST_WARPS = 16
"""Of a block; a block has one for every 32 channels up to these."""
_TYPES = {torch.float32: "float", torch.float64: "double"}


def run(args: SlotsArgs, like: Tensor, *, backward: bool) -> None:
    """Run a pass in a workspace of the size that it needs.

    Args:
        args: The call.
        like: One of its tensors.
        backward: Which pass.

    Raises:
        UserError: the kernel does not read this dtype, or cannot be compiled.
    """
    again = args.batch * (args.segment + 1) * args.slots * args.channels if backward else 0
    workspace = like.new_empty(again)
    args.workspace = workspace.data_ptr()
    LAUNCH(args, like, backward)


def warps_of(channels: int) -> int:
    """Return the warps of a block."""
    return min(_MOST_WARPS, max(2, math.ceil(channels / 32)))


def launch_of(args: SlotsArgs, dtype: torch.dtype, *, backward: bool) -> Launch:
    """Return the kernel of a pass."""
    part = -(-args.slots * dtype.itemsize // 16) * 16
    shared = 2 * part if backward else -(-2 * args.slots * dtype.itemsize // 16) * 16
    name = "slots_backward" if backward else "slots_forward"
    return Launch(name, args.batch, 32 * warps_of(args.channels), shared)


def unit_text(
    dtype: torch.dtype,
    warps: int,
    device: str = "cuda/common/device.cuh",
    *,
    resets: bool = False,
) -> str:
    """Return the text of a translation unit, both passes in one.

    Args:
        dtype: What it reads, computes in and writes.
        warps: Of a block.
        device: Header that says what the kernels ask of the machine.
        resets: Whether they read a mask of resets.
    """
    arguments = f"{_TYPES[dtype]}, {warps}, {str(resets).lower()}"
    return f'#include "{device}"\n#include "cuda/matrix_state/slots.cuh"\n{layout()}' + "".join(
        f"ELMAN_KERNEL(slots_{name}, {32 * warps}, 1, elman::SlotsArgs, "
        f"(elman::slots_{name}<{arguments}>(a)))\n"
        for name in ("forward", "backward")
    )


def _launch(args: SlotsArgs, like: Tensor, backward: bool) -> None:
    """Launch a pass on the current stream of the tensor's device."""
    if like.dtype != torch.float32:
        raise UserError(
            f"kernels.backend=cuda: computes e63m in float32, not in {like.dtype}; "
            "use kernels.backend=reference"
        )
    wanted = [launch_of(args, like.dtype, backward=backward)]
    COMPILED.launch((warps_of(args.channels), bool(args.resets)), wanted, args, like.device)


COMPILED: CudaKernels[tuple[int, bool]] = CudaKernels(
    lambda config: unit_text(torch.float32, config[0], resets=config[1]), "e63m"
)
"""By the warps of a block, and whether they read a mask of resets."""


LAUNCH: Callable[[SlotsArgs, Tensor, bool], None] = _launch
"""Runs a pass; tests put the emulator here."""
