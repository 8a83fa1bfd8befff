"""The arguments of a channel kernel, as csrc/abi/channel.h declares them.

Shape legend: b batch, t time, c channels of the state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from torch import Tensor

from elman.ops.common.abi_check import layout_assertions
from elman.ops.common.native import words_of

MAX_SLOTS, MAX_PARAMETERS = 4, 4


class ChannelSequence(ctypes.Structure):
    """A sequence [B, T, C] whose channels are adjacent."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("time", ctypes.c_int64),
    )


_POINTERS = ("first", "dfirst", "last", "dlast", "checkpoints", "workspace")
_NUMBERS = ("batch", "steps", "channels", "segment", "threads")


class ChannelArgs(ctypes.Structure):
    """One call."""

    _fields_ = (
        ("x", ChannelSequence * MAX_SLOTS),
        ("dx", ChannelSequence * MAX_SLOTS),
        ("y", ChannelSequence),
        ("dy", ChannelSequence),
        ("p", ctypes.c_void_p * MAX_PARAMETERS),
        ("dp", ctypes.c_void_p * MAX_PARAMETERS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("resets", ctypes.c_void_p),
    )


@cache
def layouts() -> str:
    """Return C++ text that refuses to compile where a mirror is wrong."""
    mirrors = {"ChannelSequence": ChannelSequence, "ChannelArgs": ChannelArgs}
    return "".join(layout_assertions(f"elman::{name}", one) for name, one in mirrors.items())


WORDS, SEQUENCE_WORDS = words_of(ChannelArgs), words_of(ChannelSequence)
"""Where the fields stand among a structure's 64-bit words."""
N_WORDS = ctypes.sizeof(ChannelArgs) // 8


def sequence(tensor_btc: Tensor, start: int = 0) -> ChannelSequence:
    """Return the channels of a sequence from ``start`` on."""
    place = tensor_btc.data_ptr() + start * tensor_btc.element_size()
    return ChannelSequence(place, tensor_btc.stride(0), tensor_btc.stride(1))


def pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Return where parameters lie."""
    return (ctypes.c_void_p * MAX_PARAMETERS)(*(tensor.data_ptr() for tensor in tensors))
