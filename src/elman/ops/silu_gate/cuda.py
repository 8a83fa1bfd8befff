"""One call of the silu-and-gate kernels on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: n rows (batch and time), w numbers of a row.
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

KERNELS = tuple(
    f"{what}_{way}"
    for what in ("silu_split", "silu_gate", "silu_self_gate", "swiglu")
    for way in ("forward", "backward")
)
_VECTOR = 8  # numbers that a thread has
_THREADS = 256


class SiluGateArgs(ctypes.Structure):
    """One call, as csrc/cuda/silu_gate/silu_gate.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("h", "z", "dout", "dsecond", "out", "dh", "dz")),
        ("rows", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


@dataclass(frozen=True)
class TileConfig:
    """How rows of one width are computed.

    Args:
        width: Numbers of a row.
        vector: Numbers of a thread: 8, or 1 where the width, a stride or an address does not permit
            vectors.
        state: Dtype of h and its gradient.
        branch: Dtype of everything else.
    """

    width: int
    vector: int
    state: torch.dtype
    branch: torch.dtype


def run(
    kernel: str, width: int, state: torch.dtype, branch: torch.dtype, **tensors: Tensor
) -> None:
    """Run a kernel.

    Args:
        kernel: One of :data:`KERNELS`.
        width: Numbers of a row.
        state: Dtype of h.
        branch: Dtype of everything else.
        tensors: By the field of :class:`SiluGateArgs`. All but z are contiguous; the last two axes
            of z, [..., n, w], may be part of a larger tensor.
    """
    first = next(iter(tensors.values()))
    args, places, rows = SiluGateArgs(stride=width), 0, first.numel() // first.shape[-1]
    for name, tensor in tensors.items():
        if name == "z":
            tensor = as_rows(tensor)
            rows, args.stride = tensor.shape[0], tensor.stride(0)
            tensors[name] = tensor  # a copy lives until the launch
        setattr(args, name, tensor.data_ptr())
        places |= tensor.data_ptr()
    args.rows = rows
    whole = places % 16 == 0 and (width | args.stride) % _VECTOR == 0
    config = TileConfig(width, _VECTOR if whole else 1, state, branch)
    blocks = math.ceil(rows * (width // config.vector) / _THREADS)
    LAUNCH(config, [Launch(kernel, blocks, _THREADS, 0)], args, first.device)


def as_rows(z: Tensor) -> Tensor:
    """Return z [n, w] with adjacent numbers, as a view where that is possible.

    Args:
        z: Rows [..., w].
    """
    z_nw = z.flatten(0, -2)
    return z_nw if z_nw.stride(1) == 1 else z_nw.contiguous()


@cache
def unit_text(config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a tile config's translation unit, all kernels in one.

    Args:
        config: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    g = config
    types = f"{CUDA_TYPES[g.state]}, {CUDA_TYPES[g.branch]}"
    return unit_text_of(
        "silu_gate",
        f"elman::SiluGateTileConfig<{types}, {g.width}, {g.vector}>",
        SiluGateArgs,
        {"THREADS": _THREADS},
        dict.fromkeys(KERNELS, "G::THREADS, 1"),
        device,
    )


COMPILED: CudaKernels[TileConfig] = CudaKernels(
    unit_text, "silu and gate", fast=lambda config: config.branch != torch.float32
)
LAUNCH: Launching[TileConfig] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
