"""What the engines' compiled kernels share with Python: dtypes and structures."""

from __future__ import annotations

import ctypes

import torch

C_TYPES = {torch.float32: "float", torch.float64: "double"}
"""Dtypes that CPU kernels compute in, with their C++ names."""


def check_layout(library: ctypes.CDLL, symbol: str, mirror: type[ctypes.Structure]) -> None:
    """Compare a mirrored structure with what the library was compiled with.

    Args:
        library: A loaded kernel.
        symbol: Its array of 64-bit numbers: the structure's size, then the offset of every field.
        mirror: The structure as Python declares it.
    """
    fields = [name for name, *_ in mirror._fields_]
    mine = [ctypes.sizeof(mirror), *(getattr(mirror, name).offset for name in fields)]
    theirs = list((ctypes.c_int64 * len(mine)).in_dll(library, symbol))
    assert mine == theirs, f"{mirror.__name__}: {mine} here, {theirs} in the kernel"


def words_of(mirror: type[ctypes.Structure]) -> dict[str, int]:
    """Return the number of every field's first 64-bit word in a structure of such words alone.

    To set a word of an ``array("q")`` that the structure shares takes a fifth of the time of
    setting the structure's field.
    """
    return {name: getattr(mirror, name).offset // 8 for name, *_ in mirror._fields_}
