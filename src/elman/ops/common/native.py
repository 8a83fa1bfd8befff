"""Dtypes and structures that the engines' compiled kernels share with Python."""

from __future__ import annotations

import ctypes

import torch

C_TYPES = {torch.float32: "float", torch.float64: "double"}
"""Dtypes that CPU kernels compute in, with their C++ names."""


def words_of(mirror: type[ctypes.Structure]) -> dict[str, int]:
    """Return the index of every field's first word in a structure of 64-bit words.

    A structure may share the memory of an ``array("q")``. To set a word of the array takes a fifth
    of the time that it takes to set the structure's field.
    """
    return {name: getattr(mirror, name).offset // 8 for name, *_ in mirror._fields_}
