"""Zeros that fill up the factors of a product in half precision on a GPU.

Tensor cores read and write 16 bytes at a time. Where the rows of a factor or of the output do not
begin at such addresses, cuBLAS has only old kernels, which take up to three times as long: on an
H100 0.50 ms for [16384, 896] times [896, 3868], and 0.17 ms for 3872 columns. Zeros behind the rows
of a weight and behind its columns change no sum.

Shape legend: b batch, t time, i input channels, o output channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from elman.ops.common.precision import compute_dtype
from elman.ops.common.transforms import transformed

MULTIPLE = 8
"""Numbers of half precision in 16 bytes."""
HALF = frozenset({torch.bfloat16, torch.float16})
"""Dtypes of the products that are padded."""
FEW_ROWS = 64
"""A product of fewer rows waits for the bytes of its weight, whatever computes it."""
DEVICE = "cuda"
"""Type of the device whose products are padded; tests put a CPU here."""


def fill_of(size: int) -> int:
    """Return how many zeros fill a size up to a multiple of 8."""
    return -size % MULTIPLE


def is_padded(x_bti: Tensor, weight_oi: Tensor) -> bool:
    """Return whether zeros fill up the factors of x W^T; compilers and transforms see no zeros.

    Args:
        x_bti: Input, any leading axes.
        weight_oi: W, not a copy of it.
    """
    if torch.compiler.is_compiling() or x_bti.device.type != DEVICE or weight_oi.ndim != 2:
        return False
    outputs, inputs = weight_oi.shape
    return (
        bool(outputs % MULTIPLE or inputs % MULTIPLE)
        and type(weight_oi) in (Tensor, Parameter)
        and x_bti.shape[-1:] == (inputs,)
        and x_bti.numel() >= FEW_ROWS * inputs > 0
        and outputs > 0
        and compute_dtype(x_bti, weight_oi.dtype) in HALF
        and not transformed()
    )


def room_for(
    weight_oi: Tensor, dtype: torch.dtype, *, filled: bool = True
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return an empty copy, the place of the weight in it, and the places of zeros.

    Args:
        weight_oi: W.
        dtype: Of the copy.
        filled: Whether the copy is filled up; else it has the weight's shape.
    """
    if not filled:
        copy = torch.empty_like(weight_oi, dtype=dtype)
        return copy, copy, []
    outputs, inputs = weight_oi.shape
    copy = weight_oi.new_empty(outputs + fill_of(outputs), inputs + fill_of(inputs), dtype=dtype)
    tails = [copy[outputs:], copy[:outputs, inputs:]]
    return copy, copy[:outputs, :inputs], [tail for tail in tails if tail.numel()]


def filled_weight(weight_oi: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight in a dtype, filled up with zeros: one copy for both."""
    filled: Tensor = _Filled.apply(weight_oi, dtype)  # type: ignore[no-untyped-call]
    return filled


class _Filled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_oi: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.shape, ctx.dtype = weight_oi.shape, weight_oi.dtype
        copy, place, zeros = room_for(weight_oi, dtype)
        place.copy_(weight_oi)
        for tail in zeros:
            tail.zero_()
        return copy

    @staticmethod
    def backward(ctx: Any, dcopy: Tensor) -> tuple[Tensor, None]:
        outputs, inputs = ctx.shape
        return dcopy[:outputs, :inputs].to(ctx.dtype), None
