"""The channel engine's CUDA kernels, run on a CPU from their own sources."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from elman.ops.channel import cuda
from elman.ops.channel.arguments import ChannelArgs
from elman.ops.channel.geometry import Geometry
from tests.emulation import emulator


def run(
    library: Callable[[str], ctypes.CDLL],
    geometry: Geometry,
    launches: Sequence[cuda.Launch],
    args: ChannelArgs,
) -> None:
    """Run the kernels of a pass.

    Args:
        library: Compiles and loads a translation unit.
        geometry: What it is compiled for.
        launches: The kernels.
        args: The call.

    Raises:
        FaultError: the emulator found one.
    """
    kernels = library(cuda.unit_text(geometry, emulator.HEADER))
    for one in launches:
        kernel = kernels[one.kernel]
        kernel.restype = ctypes.c_char_p
        blocks, shared = ctypes.c_int64(one.blocks), ctypes.c_int(one.shared_bytes)
        said = kernel(ctypes.byref(args), blocks, shared, 1)
        if said:
            raise emulator.FaultError(f"{one.kernel}: {said.decode()}")
