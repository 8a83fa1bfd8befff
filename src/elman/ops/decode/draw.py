"""The draw of a byte on an NVIDIA GPU, in one kernel instead of a dozen.

Shape legend: b texts, v values, k steps.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.native import CUDA_TYPES
from elman.ops.decode import launches

MOST_VALUES = 1024
"""A thread has a value, and a block has so many."""


class DrawArgs(ctypes.Structure):
    """One call, as csrc/cuda/decode/draw.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "uniform", "place", "last", "drawn")),
        ("texts", ctypes.c_int64),
        ("top_k", ctypes.c_int64),
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
    )


def draw_into(
    logits_bv: Tensor,
    uniform_kb: Tensor,
    place_1: Tensor,
    last_b1: Tensor,
    drawn_kb: Tensor,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
) -> None:
    """Write the next value of every text to ``last_b1`` and to its step of ``drawn_kb``.

    As :func:`elman.ops.decode.reference.draw`, but for the rounding of the sums.

    Args:
        logits_bv: Logits, bf16, fp16 or fp32, at most :data:`MOST_VALUES` values.
        uniform_kb: Numbers of [0, 1), fp32, for every step and text.
        place_1: The step, int64.
        last_b1: int64, written.
        drawn_kb: int64, one step of it written.
        temperature: As there.
        top_k: As there.
        top_p: As there.
    """
    logits_bv = logits_bv.contiguous()
    texts, values = logits_bv.shape
    assert values <= MOST_VALUES
    assert uniform_kb.is_contiguous()
    assert last_b1.is_contiguous()
    assert drawn_kb.is_contiguous()
    tensors = (logits_bv, uniform_kb, place_1, last_b1, drawn_kb)
    places = (tensor.data_ptr() for tensor in tensors)
    args = DrawArgs(*places, texts, top_k, temperature, top_p)
    text = unit_text(logits_bv.dtype, values)
    launches.LAUNCH(text, [_grid(texts, values)], args, place_1.device)


@cache
def _grid(texts: int, values: int) -> Launch:
    return Launch("draw", texts, 32 * math.ceil(values / 32), room(values), early=True)


def room(values: int) -> int:
    """Return the bytes of shared memory that a draw takes, as DrawRoom has it."""
    # Four arrays of a number for each thread, one for each warp, and a number: on boundaries of 16.
    warps = math.ceil(values / 32)
    return 16 * (32 * warps + math.ceil(warps / 4) + 1)


@cache
def unit_text(dtype: torch.dtype, values: int, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a translation unit; ``device``: header that answers for the machine."""
    size = ctypes.sizeof(DrawArgs)
    return "\n".join(
        [
            f'#include "{device}"',
            '#include "cuda/decode/draw.cuh"',
            f"using G = elman::DrawTileConfig<{CUDA_TYPES[dtype]}, {values}>;",
            f'static_assert(sizeof(elman::DrawArgs) == {size}, "draw.py");',
            "ELMAN_KERNEL(draw, G::THREADS, 1, elman::DrawArgs, elman::draw<G>(a))",
            "",
        ]
    )
