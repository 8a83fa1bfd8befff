"""One call of the column-sum kernels on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: n rows (batch and time), c columns, g chunks of the rows.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.cuda_kernels import CudaKernels, Launching
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.unit_text import unit_text_of

_VECTOR_BYTES = 16
_WARPS, _SLICES = 8, 16  # as in csrc/cuda/column_sum/column_sum.cuh
_MOST_CHUNKS = 64
_ROWS = 64  # of a chunk, at least: eight for each of a block's warps


class ColumnSumArgs(ctypes.Structure):
    """One call, as csrc/cuda/column_sum/column_sum.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "partial", "out")),
        ("rows", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
    )


@dataclass(frozen=True)
class TileConfig:
    """How rows of one width are summed.

    Args:
        width: Columns.
        vector: Numbers that one access moves: 16 bytes, or 1 number where the width or an address
            does not permit it.
        read: Dtype of what is summed.
    """

    width: int
    vector: int
    read: torch.dtype

    @property
    def tile(self) -> int:
        """Columns of a block."""
        return 32 * self.vector


def column_sum(x_nc: Tensor) -> Tensor:
    """Return the sum over the rows, fp32, in one order whatever the GPU.

    Args:
        x_nc: What is summed, contiguous, of a dtype in :data:`CUDA_TYPES`; it has a row
            and a column at least.
    """
    rows, width = x_nc.shape
    vector = _VECTOR_BYTES // x_nc.element_size()
    whole = width % vector == 0 and x_nc.data_ptr() % _VECTOR_BYTES == 0
    config = TileConfig(width, vector if whole else 1, x_nc.dtype)
    chunks = min(_MOST_CHUNKS, math.ceil(rows / _ROWS))
    partial_gc = x_nc.new_empty((chunks, width), dtype=torch.float32)
    sum_c = x_nc.new_empty(width, dtype=torch.float32)
    places = (tensor.data_ptr() for tensor in (x_nc, partial_gc, sum_c))
    args = ColumnSumArgs(*places, rows, chunks)
    blocks = chunks * math.ceil(width / config.tile)
    wanted = (
        Launch("column_sum_parts", blocks, 32 * _WARPS, 4 * _WARPS * config.tile),
        Launch("column_sum_finish", math.ceil(width / 32), 32 * _SLICES, 128 * _SLICES),
    )
    LAUNCH(config, wanted, args, x_nc.device)
    return sum_c


@cache
def unit_text(config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a tile config's translation unit, both kernels in one.

    Args:
        config: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    g = config
    return unit_text_of(
        "column_sum",
        f"elman::ColumnSumTileConfig<{CUDA_TYPES[g.read]}, {g.width}, {g.vector}>",
        ColumnSumArgs,
        {"WARPS": _WARPS, "SLICES": _SLICES},
        {"column_sum_parts": "G::THREADS, 1", "column_sum_finish": "32 * G::SLICES, 1"},
        device,
    )


COMPILED: CudaKernels[TileConfig] = CudaKernels(unit_text, "column sum")
LAUNCH: Launching[TileConfig] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
