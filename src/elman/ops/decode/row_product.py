"""y = x W^T for a few rows, on an NVIDIA GPU: a matrix product's kernel takes twice as long.

Shape legend: r rows, i input channels, o output channels.
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

MOST_ROWS = 4
"""Beyond these PyTorch's product is as fast."""
_WARPS = 4


class RowProductArgs(ctypes.Structure):
    """One call, as csrc/cuda/decode/row_product.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "y")),
        ("outputs", ctypes.c_int64),
    )


def fits(x_ri: Tensor, weight_oi: Tensor) -> bool:
    """Return whether the kernel computes this product; any leading axes of x are its rows."""
    width = weight_oi.shape[-1]
    return (
        weight_oi.ndim == 2
        and width > 0
        and 0 < x_ri.numel() <= MOST_ROWS * width
        and weight_oi.is_contiguous()
        and weight_oi.dtype in CUDA_TYPES
    )


def row_product(x_ri: Tensor, weight_oi: Tensor) -> Tensor:
    """Return x W^T [..., o] in the dtype of W, with sums in fp32; no gradient flows.

    Args:
        x_ri: At most :data:`MOST_ROWS` rows, any leading axes; taken to the dtype of W.
        weight_oi: W, contiguous, on a GPU.
    """
    x_ri = x_ri.to(weight_oi.dtype).contiguous()
    outputs, width = weight_oi.shape
    y_ro = x_ri.new_empty(*x_ri.shape[:-1], outputs)
    size = weight_oi.element_size()
    bits = x_ri.data_ptr() | weight_oi.data_ptr()
    vector = 16 // size if bits % 16 == 0 and width * size % 16 == 0 else 1
    text = unit_text(weight_oi.dtype, width, vector, x_ri.numel() // width)
    args = RowProductArgs(x_ri.data_ptr(), weight_oi.data_ptr(), y_ro.data_ptr(), outputs)
    launches.LAUNCH(text, [_grid(outputs)], args, weight_oi.device)
    return y_ro


@cache
def _grid(outputs: int) -> Launch:
    return Launch("row_product", math.ceil(outputs / _WARPS), 32 * _WARPS, early=True)


@cache
def unit_text(
    dtype: torch.dtype, width: int, vector: int, rows: int, device: str = "cuda/common/device.cuh"
) -> str:
    """Return the text of a translation unit.

    Args:
        dtype: Of all three tensors.
        width: Numbers of a row.
        vector: Numbers that one access moves.
        rows: Rows of x.
        device: Header that says what the kernel asks of the machine.
    """
    numbers = f"{CUDA_TYPES[dtype]}, {width}, {vector}, {rows}, {_WARPS}"
    size = ctypes.sizeof(RowProductArgs)
    return "\n".join(
        [
            f'#include "{device}"',
            '#include "cuda/decode/row_product.cuh"',
            f"using G = elman::RowProductTileConfig<{numbers}>;",
            f'static_assert(sizeof(elman::RowProductArgs) == {size}, "row_product.py");',
            "ELMAN_KERNEL(row_product, G::THREADS, 1, elman::RowProductArgs, "
            "elman::row_product<G>(a))",
            "",
        ]
    )
