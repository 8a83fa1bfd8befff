"""One call of the spectral-norm kernels on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: r rows and c columns of the matrix, g blocks of a grid.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.cuda_kernels import CudaKernels, Launching
from elman.ops.common.unit_text import unit_text_of

_VECTOR = 4  # numbers: 16 bytes of fp32
_WARPS = 8  # as in csrc/cuda/spectral_norm/spectral_norm.cuh
_THREADS = 32 * _WARPS
_MOST_BLOCKS = _THREADS  # a block's threads add up a number of every block
_KERNELS = ("size", "forward", "along", "backward")
_POINTERS = ("weight", "u", "v", "dnormed", "parts", "dparts", "out")


class SpectralNormArgs(ctypes.Structure):
    """One call, as csrc/cuda/spectral_norm/spectral_norm.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("rows", "blocks")),
        *((name, ctypes.c_double) for name in ("radius", "eps")),
    )


@dataclass(frozen=True)
class TileConfig:
    """How matrices of one width are computed.

    Args:
        width: Columns.
        vector: Numbers that one access moves: 4, or 1 where the width or an address does not permit
            it.
    """

    width: int
    vector: int


def forward(
    weight_rc: Tensor, u_r: Tensor, v_c: Tensor, radius: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Return W radius / (|u^T W v| + eps), and parts [g] of the sum u^T W v.

    Args:
        weight_rc: W, not empty; like all tensors here contiguous and fp32.
        u_r: u.
        v_c: v.
        radius: See above.
        eps: See above.
    """
    blocks = _blocks(weight_rc)
    parts_g, normed_rc = weight_rc.new_empty(blocks), weight_rc.new_empty(weight_rc.shape)
    tensors = {"weight": weight_rc, "u": u_r, "v": v_c, "parts": parts_g, "out": normed_rc}
    _run(("size", "forward"), tensors, blocks, radius, eps)
    return normed_rc, parts_g


def backward(
    dnormed_rc: Tensor,
    weight_rc: Tensor,
    u_r: Tensor,
    v_c: Tensor,
    parts_g: Tensor,
    radius: float,
    eps: float,
) -> Tensor:
    """Return the gradient of W from that of the result of :func:`forward`."""
    blocks = len(parts_g)
    dparts_g, dweight_rc = parts_g.new_empty(blocks), weight_rc.new_empty(weight_rc.shape)
    tensors = {"weight": weight_rc, "u": u_r, "v": v_c, "dnormed": dnormed_rc}
    tensors |= {"parts": parts_g, "dparts": dparts_g, "out": dweight_rc}
    _run(("along", "backward"), tensors, blocks, radius, eps)
    return dweight_rc


def _blocks(weight_rc: Tensor) -> int:
    """Return the blocks of a grid, one number for all configs: sums have one order."""
    return min(_MOST_BLOCKS, math.ceil(weight_rc.numel() / (_VECTOR * _THREADS)))


def _run(
    kernels: tuple[str, str], tensors: dict[str, Tensor], blocks: int, radius: float, eps: float
) -> None:
    """Launch both kernels of a pass."""
    weight_rc, bits = tensors["weight"], 0
    rows, width = weight_rc.shape
    args = SpectralNormArgs(rows=rows, blocks=blocks, radius=radius, eps=eps)
    for name, tensor in tensors.items():
        setattr(args, name, tensor.data_ptr())
        bits |= tensor.data_ptr()
    whole = bits % (4 * _VECTOR) == 0 and width % _VECTOR == 0
    wanted = [Launch(f"spectral_norm_{k}", blocks, _THREADS, 8 * _WARPS) for k in kernels]
    LAUNCH(TileConfig(width, _VECTOR if whole else 1), wanted, args, weight_rc.device)


@cache
def unit_text(config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a tile config's translation unit, all kernels in one.

    Args:
        config: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    return unit_text_of(
        "spectral_norm",
        f"elman::SpectralNormTileConfig<{config.width}, {config.vector}>",
        SpectralNormArgs,
        {"WARPS": _WARPS},
        {f"spectral_norm_{name}": "G::THREADS, 1" for name in _KERNELS},
        device,
    )


COMPILED: CudaKernels[TileConfig] = CudaKernels(unit_text, "spectral norm")
LAUNCH: Launching[TileConfig] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
