"""The arguments of a kernel of E63m, as csrc/abi/slots.h declares them."""

from __future__ import annotations

import ctypes

from elman.ops.common.abi_check import layout_assertions

SEGMENT = 16
"""Steps between two checkpoints."""
_POINTERS = (
    *("k", "q", "input", "row", "mix", "y", "dy", "first", "last", "dlast", "dfirst"),
    *("checkpoints", "read", "value", "dk", "dq", "dinput", "drow", "workspace"),
)
_NUMBERS = ("batch", "steps", "slots", "channels", "segment", "threads")


class SlotsArgs(ctypes.Structure):
    """One call, as csrc/abi/slots.h declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("resets", ctypes.c_void_p),
    )


def layout() -> str:
    """Return C++ text that refuses to compile where the mirror is wrong."""
    return layout_assertions("elman::SlotsArgs", SlotsArgs)
