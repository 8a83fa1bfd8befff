"""Tensors far larger than memory: address space that takes pages where it is touched alone.

Kernels that compute an offset in 32 bits are seen with them, since the offsets of a test may then
be those of 2^31 numbers and more. All of it is read as zeros at first.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

# Python 3.13 names it; before, it is Linux's number.
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
BEYOND = 2**31  # what 32 bits with a sign do not hold


def room(numbers: int, dtype: torch.dtype) -> Tensor:
    """Return so many numbers, of which those that are touched alone take memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    place = mmap.mmap(-1, max(numbers, 1) * dtype.itemsize, flags=flags)
    return torch.frombuffer(place, dtype=dtype)


def spread(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return a copy of a tensor whose numbers lie so far from each other."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    made = room(last + 1, tensor.dtype).as_strided(tensor.shape, strides)
    with torch.no_grad():
        made.copy_(tensor)
    return made
