"""Launches of the decoding kernels on PyTorch's current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from elman.kernels import driver
from elman.kernels.driver import Loaded
from elman.kernels.launching import Launch, architecture, launch
from elman.kernels.nvrtc import Unit

# C++ names of the dtypes that the kernels read and write.


def _launch(text: str, wanted: Launch, args: ctypes.Structure, device: torch.device) -> None:
    launch(_loaded(text, device.index), [wanted], args, device.index)


@cache
def _loaded(text: str, index: int) -> Loaded:
    """Return the kernels of a translation unit, for the GPU of an index."""
    return driver.load(Unit(text, "decoding", architecture(index), fast=False))


LAUNCH: Callable[[str, Launch, ctypes.Structure, torch.device], None] = _launch
"""Runs a kernel; tests put the emulator here."""
