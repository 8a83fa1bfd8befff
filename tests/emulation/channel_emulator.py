"""The channel engine's CUDA kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from elman.ops.channel.abi import ChannelArgs
from elman.ops.channel.cuda import kernels
from elman.ops.channel.cuda.tile_config import TileConfig
from tests.emulation import emulator
from tests.emulation.stretches import declare, of_channel

_BACKWARD = ("channel_backward", "channel_norms_backward", "channel_finish")


def run(
    library: Callable[[str], ctypes.CDLL],
    tile_config: TileConfig,
    launches: Sequence[kernels.Launch],
    args: ChannelArgs,
) -> None:
    """Run the kernels of a pass.

    Args:
        library: Compiles and loads a translation unit.
        tile_config: What it is compiled for.
        launches: The kernels.
        args: The call.

    Raises:
        FaultError: the emulator found one.
    """
    fast = tile_config.io == torch.bfloat16
    compiled = library(kernels.unit_text(tile_config, emulator.header_for(fast)))
    backward = any(one.kernel in _BACKWARD for one in launches)
    declare(compiled, of_channel(args, tile_config, backward=backward))
    for one in launches:
        emulator.start(compiled, one, args)
