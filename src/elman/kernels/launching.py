"""Launches compiled kernels on PyTorch's current stream, on the device of the tensors.

The driver needs 2 to 4 us of host time for a launch. Setting a device that is already current and
getting the stream as an object would each be as slow again, so this file avoids both.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from elman.kernels.driver import Loaded

# Launches leave the context of a thread as it is. If a thread of autograd multiplies first, PyTorch
# sets the context itself, and says so.
warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA")


class Launch(NamedTuple):
    """One kernel of a pass.

    Args:
        kernel: Its name.
        blocks: Blocks of the grid.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
        early: Whether it may start while the kernel before it still runs; the kernel itself waits
            for that one.
        cluster: Blocks of a cluster, which run at the same time and see each other's shared
            memory. They need compute capability 9.0; 0: the kernel asks nothing of clusters.
        together: Whether all blocks have to run at the same time; the driver refuses more than
            have room at once.
    """

    kernel: str
    blocks: int
    threads: int
    shared_bytes: int = 0
    early: bool = False
    cluster: int = 0
    together: bool = False


def launch(
    kernels: Loaded, wanted: Sequence[Launch], arguments: ctypes.Structure, device: int
) -> None:
    """Launch kernels one after the other on the current stream of a device; returns at once.

    Args:
        kernels: The kernels of a translation unit for the device.
        wanted: The ones to launch, in order.
        arguments: The argument of each kernel; it is copied.
        device: Index of the device, which need not be the current one.

    Raises:
        UserError: the driver refuses a launch.
    """
    if device == torch.cuda.current_device():
        _launch(kernels, wanted, arguments, device)
    else:
        with torch.cuda.device(device):
            _launch(kernels, wanted, arguments, device)


def _launch(
    kernels: Loaded, wanted: Sequence[Launch], arguments: ctypes.Structure, device: int
) -> None:
    stream = STREAM(device)
    for kernel, blocks, threads, shared_bytes, early, cluster, together in wanted:
        kernels.launch(
            kernel,
            blocks=blocks,
            threads=threads,
            shared_bytes=shared_bytes,
            arguments=arguments,
            device=device,
            stream=stream,
            early=early and torch.cuda.get_device_capability(device) >= (9, 0),
            cluster=cluster,
            together=together,
        )


def architecture(device: int) -> str:
    """Return NVRTC's name for the architecture of a device."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _public_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


STREAM: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
"""Returns a device's current stream handle; through a stream object if torch lacks this name."""
