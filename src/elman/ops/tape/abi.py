"""The arguments of a tape kernel, as csrc/abi/tape.h declares them."""

from __future__ import annotations

import ctypes
from functools import cache

from elman.ops.common.abi_check import layout_assertions

_POINTERS = (
    *("x", "dx", "y", "dy", "matrix", "pulls", "first", "last", "dlast", "dfirst"),
    *("tape", "last_tape", "dlast_tape", "dtape", "weights", "values", "checkpoints", "workspace"),
)
_NUMBERS = ("batch", "steps", "channels", "slots", "threads", "interval")


class TapeArgs(ctypes.Structure):
    """One call."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("resets", ctypes.c_void_p),
    )


@cache
def layouts() -> str:
    """Return C++ text that refuses to compile where the mirror is wrong."""
    return layout_assertions("elman::TapeArgs", TapeArgs)
