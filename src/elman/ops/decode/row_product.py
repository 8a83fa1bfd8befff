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
from elman.ops.common.abi_check import same
from elman.ops.common.native import CUDA_TYPES
from elman.ops.decode import launches
from elman.ops.decode.shares import CHUNK

MOST_ROWS = 4
"""Beyond these PyTorch's product is as fast."""
_WARPS = 4
_TALL, _MOST_WARPS = 8, 12  # outputs and warps of a block by tensor cores


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
    rows = x_ri.numel() // width
    args = RowProductArgs(x_ri.data_ptr(), weight_oi.data_ptr(), y_ro.data_ptr(), outputs)
    if weight_oi.dtype == torch.bfloat16 and vector > 1:
        text, wanted = tile_text(width, rows), _tiles(outputs, width, rows)
    else:
        text, wanted = unit_text(weight_oi.dtype, width, vector, rows), _grid(outputs)
    launches.LAUNCH(text, [wanted], args, weight_oi.device)
    return y_ro


@cache
def _grid(outputs: int) -> Launch:
    return Launch("row_product", math.ceil(outputs / _WARPS), 32 * _WARPS, early=True)


@cache
def _tiles(outputs: int, width: int, rows: int) -> Launch:
    shared = 4 * math.ceil(width / CHUNK) * _TALL * rows
    threads = 32 * _tile_warps(width)
    return Launch("tile_product", math.ceil(outputs / _TALL), threads, shared, early=True)


def _tile_warps(width: int) -> int:
    """Return the fewest warps of which none has more chunks of a row than the most have to."""
    chunks = math.ceil(width / CHUNK)
    return math.ceil(chunks / math.ceil(chunks / _MOST_WARPS))


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
    return _text([device], "row_product", f"elman::RowProductTileConfig<{numbers}>")


@cache
def tile_text(width: int, rows: int, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a translation unit for bf16, by tensor cores.

    Args:
        width: Numbers of a row, a multiple of 8.
        rows: Rows of x.
        device: As above.
    """
    config = f"elman::TileProductConfig<{width}, {rows}, {_tile_warps(width)}>"
    tiles = same("G::TALL", _TALL, "row_product.py: outputs of a block")
    return _text([device, "cuda/common/cluster.cuh"], "tile_product", config, tiles)


def _text(headers: list[str], kernel: str, config: str, checks: str = "") -> str:
    size = ctypes.sizeof(RowProductArgs)
    return "\n".join(
        [
            *(f'#include "{header}"' for header in headers),
            f'#include "cuda/decode/{kernel}.cuh"',
            f"using G = {config};",
            checks + same("sizeof(elman::RowProductArgs)", size, "row_product.py"),
            f"ELMAN_KERNEL({kernel}, G::THREADS, 1, elman::RowProductArgs, elman::{kernel}<G>(a))",
            "",
        ]
    )
