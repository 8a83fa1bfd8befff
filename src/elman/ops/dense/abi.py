"""The arguments of a dense kernel, as csrc/abi/dense.h declares them."""

from __future__ import annotations

import ctypes
from functools import cache

from torch import Tensor

from elman.ops.common.abi_check import layout_assertions

MAX_OTHERS = 2


class DenseSequence(ctypes.Structure):
    """A sequence [B, T, C] whose channels are adjacent."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("time", ctypes.c_int64),
    )


_POINTERS = (
    *("matrix", "inner", "extra", "scale", "dscale", "memo", "norms"),
    *("first", "last", "dlast", "dfirst", "workspace"),
)
_NUMBERS = ("batch", "steps", "channels", "rank", "threads", "pitch")


class DenseArgs(ctypes.Structure):
    """One call."""

    _fields_ = (
        ("x", DenseSequence),
        ("dx", DenseSequence),
        ("p", DenseSequence * MAX_OTHERS),
        ("dp", DenseSequence * MAX_OTHERS),
        ("y", DenseSequence),
        ("dy", DenseSequence),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("resets", ctypes.c_void_p),
    )


@cache
def layouts() -> str:
    """Return C++ text that refuses to compile where a mirror is wrong."""
    mirrors = {"DenseSequence": DenseSequence, "DenseArgs": DenseArgs}
    return "".join(layout_assertions(f"elman::{name}", one) for name, one in mirrors.items())


def sequence(tensor_btc: Tensor) -> DenseSequence:
    """Return where a sequence lies."""
    return DenseSequence(tensor_btc.data_ptr(), tensor_btc.stride(0), tensor_btc.stride(1))
