"""One call of the rotary kernels on an NVIDIA GPU, on PyTorch's current stream.

Shape legend: b batch, t time, h heads, c channels of a head, a = h c, k = 3 a, p = c / 2 pairs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.common.cuda_kernels import CudaKernels, Launching
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.unit_text import unit_text_of

_VECTOR, _PAIR = 8, 2  # channels of a thread
_THREADS = 256
_POINTERS = ("qkv", "turns", "q", "k", "dq", "dk", "dv", "dqkv")
_STRIDES = tuple(f"{name}_{axis}" for name in ("dq", "dk", "dv") for axis in "bth")


class RotaryArgs(ctypes.Structure):
    """One call, as csrc/cuda/rotary/rotary.cuh declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in ("rows", "steps", "stride", *_STRIDES)),
    )


@dataclass(frozen=True)
class TileConfig:
    """How rows of one width are turned.

    Args:
        inner: Channels of all heads, a.
        channels: Channels of a head, an even number.
        vector: Channels of a thread: 8, or 2 where a head, a stride or an address does not permit
            more.
        dtype: Of everything but the angles.
    """

    inner: int
    channels: int
    vector: int
    dtype: torch.dtype


def forward(qkv_btk: Tensor, turns_tp2: Tensor, q_bthc: Tensor, k_bthc: Tensor) -> None:
    """Turn queries and keys, into contiguous tensors."""
    tensors = {"qkv": qkv_btk, "turns": turns_tp2, "q": q_bthc, "k": k_bthc}
    _run("rotary_forward", tensors, q_bthc, [qkv_btk.stride(1)], stride=qkv_btk.stride(1))


def backward(
    dq_bthc: Tensor, dk_bthc: Tensor, dv_bthc: Tensor, turns_tp2: Tensor, dqkv_btk: Tensor
) -> None:
    """Turn the gradients back, and lay them and those of the values side by side."""
    sources = {"dq": dq_bthc, "dk": dk_bthc, "dv": dv_bthc}
    strides = {
        f"{name}_{axis}": one.stride(n)
        for name, one in sources.items()
        for n, axis in enumerate("bth")
    }
    tensors = sources | {"turns": turns_tp2, "dqkv": dqkv_btk}
    _run("rotary_backward", tensors, dq_bthc, list(strides.values()), **strides)


def _run(
    kernel: str, tensors: dict[str, Tensor], like_bthc: Tensor, strides: list[int], **numbers: int
) -> None:
    batch, steps, heads, channels = like_bthc.shape
    args = RotaryArgs(rows=batch * steps, steps=steps, **numbers)
    places = channels
    for name, tensor in tensors.items():
        setattr(args, name, tensor.data_ptr())
        places |= tensor.data_ptr() // tensor.element_size()
    for stride in strides:
        places |= stride
    vector = _VECTOR if places % _VECTOR == 0 else _PAIR
    config = TileConfig(heads * channels, channels, vector, like_bthc.dtype)
    LAUNCH(config, [Launch(kernel, args.rows, _THREADS)], args, like_bthc.device)


def readable(x_bthc: Tensor) -> Tensor:
    """Return a tensor whose pairs of channels can be read, a copy where they cannot be."""
    pairs = x_bthc.data_ptr() % (_PAIR * x_bthc.element_size()) == 0
    even = all(stride % _PAIR == 0 for stride in x_bthc.stride()[:-1])
    return (
        x_bthc
        if x_bthc.stride(-1) == 1 and pairs and even
        else x_bthc.clone(memory_format=torch.contiguous_format)
    )


@cache
def unit_text(config: TileConfig, device: str = "cuda/common/device.cuh") -> str:
    """Return the text of a tile config's translation unit, both passes in one.

    Args:
        config: What is computed how.
        device: Header that says what the kernels ask of the machine.
    """
    g = config
    return unit_text_of(
        "rotary",
        f"elman::RotaryTileConfig<{CUDA_TYPES[g.dtype]}, {g.inner}, {g.channels}, {g.vector}>",
        RotaryArgs,
        {"THREADS": _THREADS},
        dict.fromkeys(("rotary_forward", "rotary_backward"), "G::THREADS, 1"),
        device,
    )


COMPILED: CudaKernels[TileConfig] = CudaKernels(unit_text, "rotary")
LAUNCH: Launching[TileConfig] = COMPILED.launch
"""Runs kernels; tests put the emulator here."""
