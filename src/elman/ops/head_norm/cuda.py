"""One call of the head-norm kernels on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: v width of a head, s steps (batch and time), i channels of the gate, g blocks.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.cuda_kernels import CudaKernels, Launching, multiprocessors
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.unit_text import unit_text_of
from elman.ops.silu_gate.cuda import as_rows

if TYPE_CHECKING:
    from elman.ops.head_norm.custom_op import Call, Saved

MOST_WIDTH = 1024
"""Numbers of the longest row: 32 in the registers of a warp's lanes. 0 leaves all to PyTorch."""
_ACTS = {"none": "NONE", "silu": "SILU", "sigmoid": "SIGMOID"}
_VECTORS = (8, 4, 2, 1)
_ACCESS_BYTES = 16  # of the widest access
_WARPS, _SLICES = 8, 16  # as in csrc/cuda/head_norm/head_norm.cuh


class HeadNormArgs(ctypes.Structure):
    """One call, as csrc/cuda/head_norm/head_norm.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "gain", "gate", "dout")),
        *((name, ctypes.c_void_p) for name in ("out", "rstd", "dy", "dgate")),
        *((name, ctypes.c_void_p) for name in ("partial", "dgain")),
        *((name, ctypes.c_int64) for name in ("rows", "stride", "blocks")),
        ("eps", ctypes.c_double),
    )


@dataclass(frozen=True)
class TileConfig:
    """How rows of one width are computed.

    Args:
        width: Numbers of a row.
        heads: Rows of a step, which the gate has side by side; 1 without a gate.
        vector: Consecutive numbers of a lane: as many of 8 as the width, the gate's stride and the
            addresses permit.
        act: The gate's activation, or ``none``.
        y: Dtype of what is normed, and of its gradient.
        gate: Dtype of the gate; without one, that of the output.
        out: Dtype of the output.
    """

    width: int
    heads: int
    vector: int
    act: str
    y: torch.dtype
    gate: torch.dtype
    out: torch.dtype

    @property
    def lanes(self) -> int:
        """Lanes of a row: a power of two."""
        return min(32, 1 << (self.width // self.vector - 1).bit_length())

    @property
    def chunks(self) -> int:
        """Vectors of a lane."""
        return math.ceil(self.width / (self.vector * self.lanes))

    @property
    def rows(self) -> int:
        """Rows of a block at a time."""
        return _WARPS * 32 // self.lanes

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor holds at a time, as in the kernel's source."""
        numbers = self.vector * self.chunks
        return 4 if numbers <= 8 else 2 if numbers <= 16 else 1


def forward(call: Call, results: tuple[Tensor, Tensor]) -> None:
    """Write the output and 1 / sqrt(mean square + eps), as the custom operator has them."""
    out, rstd = results
    if not rstd.numel():
        return
    tensors = {"y": call.y.contiguous(), "gain": call.gain_v.contiguous(), "out": out, "rstd": rstd}
    config, args = _arguments(tensors, call.gate, call.act, call.eps, out.dtype)
    blocks = math.ceil(args.rows / config.rows)
    LAUNCH(config, [Launch("head_norm_forward", blocks, 32 * _WARPS)], args, out.device)


def backward(saved: Saved, gradients: tuple[Tensor, Tensor, Tensor | None]) -> None:
    """Write the gradients of reads, gain and gate, as the custom operator has them."""
    dy, dgain_v, dgate = gradients
    if not dy.numel():
        dgain_v.zero_()
        return
    tensors = {
        "y": saved.y.contiguous(),
        "gain": saved.gain_v.contiguous(),
        "rstd": saved.rstd,
        "dout": saved.dout.contiguous(),
        "dy": dy,
        "dgain": dgain_v,
    }
    if dgate is not None:
        tensors["dgate"] = dgate
    config, args = _arguments(tensors, saved.gate, saved.act, saved.eps, saved.dout.dtype)
    # As many blocks as run at a time: the fewer they are, the fewer sums of dgain there are.
    resident = MULTIPROCESSORS(dy.device) * config.blocks
    args.blocks = min(math.ceil(args.rows / config.rows), resident)
    partial_gv = dgain_v.new_empty(args.blocks, config.width)
    args.partial = partial_gv.data_ptr()
    wanted = [
        Launch("head_norm_backward", args.blocks, 32 * _WARPS, _shared(config)),
        Launch("head_norm_finish", math.ceil(config.width / 32), 32 * _SLICES, 128 * _SLICES),
    ]
    LAUNCH(config, wanted, args, dy.device)


def _shared(config: TileConfig) -> int:
    """Return the bytes of a sum per warp and column, on a boundary of 16."""
    return math.ceil(4 * _WARPS * config.width / 16) * 16


def _arguments(
    tensors: dict[str, Tensor], gate: Tensor | None, act: str, eps: float, out: torch.dtype
) -> tuple[TileConfig, HeadNormArgs]:
    """Return how a call is computed, and its arguments, which point to the tensors."""
    width, narrow = tensors["y"].shape[-1], out
    args = HeadNormArgs(rows=tensors["y"].numel() // width, eps=eps)
    heads, numbers = 1, [width]
    if gate is not None:
        gate_si = tensors["gate"] = as_rows(gate)
        heads, args.stride, narrow = gate_si.shape[1] // width, gate_si.stride(0), gate.dtype
        numbers.append(args.stride)
    for name, tensor in tensors.items():
        setattr(args, name, tensor.data_ptr())
    moved = [tensor for name, tensor in tensors.items() if name != "rstd"]
    vector = next(size for size in _VECTORS if _is_whole(size, numbers, moved))
    return TileConfig(width, heads, vector, act, tensors["y"].dtype, narrow, out), args


def _is_whole(size: int, numbers: Sequence[int], tensors: Iterable[Tensor]) -> bool:
    """Return whether numbers are multiples of a vector, and tensors begin on a boundary of it."""
    return all(number % size == 0 for number in numbers) and all(
        tensor.data_ptr() % min(size * tensor.element_size(), _ACCESS_BYTES) == 0
        for tensor in tensors
    )


@cache
def unit_text(config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a tile config's translation unit, all passes in one.

    Args:
        config: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    g = config
    types = ", ".join(CUDA_TYPES[dtype] for dtype in (g.y, g.gate, g.out))
    numbers = f"{g.width}, {g.heads}, {g.vector}, {g.chunks}, {g.lanes}"
    return unit_text_of(
        "head_norm",
        f"elman::HeadNormTileConfig<{types}, elman::HeadGate::{_ACTS[g.act]}, {numbers}>",
        HeadNormArgs,
        {"ROWS": g.rows, "BLOCKS": g.blocks, "WARPS": _WARPS, "SLICES": _SLICES},
        {
            "head_norm_forward": "G::THREADS, G::BLOCKS",
            "head_norm_backward": "G::THREADS, G::BLOCKS",
            "head_norm_finish": "32 * G::SLICES, 1",
        },
        device,
    )


# Nothing waits for a quotient of a number; the gate has the numbers of PyTorch's.
COMPILED: CudaKernels[TileConfig] = CudaKernels(unit_text, "head norm")
LAUNCH: Launching[TileConfig] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
MULTIPROCESSORS: Callable[[torch.device], int] = multiprocessors
"""Tells how many a device has; tests answer for the emulator."""
