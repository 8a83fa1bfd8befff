"""What the engines' compiled kernels share with Python: dtypes and structures."""

from __future__ import annotations

import ctypes

import torch

C_TYPES = {torch.float32: "float", torch.float64: "double"}
"""Dtypes that CPU kernels compute in, with their C++ names."""


def words_of(mirror: type[ctypes.Structure]) -> dict[str, int]:
    """Return the number of every field's first 64-bit word in a structure of such words alone.

    To set a word of an ``array("q")`` that the structure shares takes a fifth of the time of
    setting the structure's field.
    """
    return {name: getattr(mirror, name).offset // 8 for name, *_ in mirror._fields_}
