"""Launches of compiled kernels on PyTorch's current stream, on the device of the tensors.

A launch takes the driver 2 to 4 us of host time. To make a device current that is current already,
and to ask for a stream as an object, would take twice as much again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from elman.kernels.nvrtc import Loaded


class Launch(NamedTuple):
    """One kernel of a pass.

    Args:
        kernel: Its name.
        blocks: Blocks of the grid.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
        early: Whether it may begin while the kernel before it still runs; it waits itself.
    """

    kernel: str
    blocks: int
    threads: int
    shared_bytes: int = 0
    early: bool = False


def launch(
    kernels: Loaded, wanted: Sequence[Launch], arguments: ctypes.Structure, device: int
) -> None:
    """Launch kernels one after the other on the current stream of a device; returns at once.

    Args:
        kernels: Those of a translation unit for the device.
        wanted: Which of them, in their order.
        arguments: What each of them takes; it is copied.
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
    for kernel, blocks, threads, shared_bytes, early in wanted:
        kernels.launch(
            kernel,
            blocks=blocks,
            threads=threads,
            shared_bytes=shared_bytes,
            arguments=arguments,
            device=device,
            stream=stream,
            early=early and torch.cuda.get_device_capability(device) >= (9, 0),
        )


def architecture(device: int) -> str:
    """Return what NVRTC calls the architecture of a device."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _public_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


STREAM: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
"""Returns the handle of a device's current stream; without that name, by way of an object."""
