"""Rotary positions as a layer calls them: one kernel each way on a GPU.

PyTorch turns queries and keys in fp32 and by complex numbers, one after the other, with a copy on
either side. Its backward pass also joins three gradients. Together that was a fifth of a
transformer's training step.

Shape legend: b batch, t time, h heads, c channels of a head, a = h c, k = 3 a, p = c / 2 pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.transforms import KernelFunction, apply, in_a_cuda_kernel
from elman.ops.rotary import cuda

_LEAST_STEPS = 512
# By channels, base, steps and device. Nothing is removed: a CUDA graph reads its table later.
_tables: dict[tuple[int, float, int, torch.device], Tensor] = {}


def can_turn(qkv_btk: Tensor, backend: str) -> bool:
    """Return whether a kernel computes a call; compilers and transforms see PyTorch's operators.

    Args:
        qkv_btk: Queries, keys and values side by side.
        backend: Name of the layer's backend; ``cuda`` computes in a kernel.
    """
    return in_a_cuda_kernel(backend, (qkv_btk,), CUDA_TYPES)


def turned(qkv_btk: Tensor, channels: int, theta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys, turned by the angles of positions 0 to t - 1, and the values.

    Channels 2p and 2p + 1 of each head turn by t theta^(-2p / c) (lm-and-training specification
    5.3), in fp32. Angles are made in fp64.

    Args:
        qkv_btk: Queries, keys and values side by side; see :func:`can_turn`.
        channels: Channels of a head, an even number.
        theta: Base of the wavelengths.

    Returns:
        Three tensors [b, t, h, c]; the values are a view.
    """
    turns_tp2 = table(qkv_btk.shape[1], channels, theta, qkv_btk.device)
    found: tuple[Tensor, Tensor, Tensor] = apply(_Turn, qkv_btk, turns_tp2, channels)
    return found


def table(steps: int, channels: int, theta: float, device: torch.device) -> Tensor:
    """Return cosine and sine of every angle of ``steps`` positions or more, fp32 [t, p, 2]."""
    rounded = max(_LEAST_STEPS, 1 << (steps - 1).bit_length())
    key = (channels, theta, rounded, device)
    if key in _tables:
        return _tables[key]
    to: dict[str, Any] = {"dtype": torch.float64, "device": device}
    with torch.no_grad():
        rate_p = theta ** (torch.arange(0, channels, 2, **to) / -channels)
        angle_tp = torch.arange(rounded, **to)[:, None] * rate_p
        turns_tp2 = torch.stack([angle_tp.cos(), angle_tp.sin()], dim=-1).float().contiguous()
    # What a graph captures is in its own memory, which may not outlive it.
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        _tables[key] = turns_tp2
    return turns_tp2


class _Turn(KernelFunction):
    @staticmethod
    def forward(
        ctx: Any, qkv_btk: Tensor, turns_tp2: Tensor, channels: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv_btk = qkv_btk.contiguous()
        if qkv_btk.data_ptr() % (2 * qkv_btk.element_size()):
            qkv_btk = qkv_btk.clone()
        q_bthc, k_bthc, v_bthc = (
            part.unflatten(-1, (-1, channels)) for part in qkv_btk.chunk(3, dim=-1)
        )
        room = torch.contiguous_format
        q_bthc, k_bthc = (torch.empty_like(one, memory_format=room) for one in (q_bthc, k_bthc))
        cuda.forward(qkv_btk, turns_tp2, q_bthc, k_bthc)
        # Not saved as a tensor of the graph: a text may have made the table without gradients.
        ctx.turns, ctx.shape = turns_tp2, qkv_btk.shape
        return q_bthc, k_bthc, v_bthc

    @staticmethod
    def backward(
        ctx: Any, dq_bthc: Tensor, dk_bthc: Tensor, dv_bthc: Tensor
    ) -> tuple[Tensor, None, None]:
        dq_bthc, dk_bthc, dv_bthc = map(cuda.readable, (dq_bthc, dk_bthc, dv_bthc))
        dqkv_btk = dq_bthc.new_empty(ctx.shape)
        cuda.backward(dq_bthc, dk_bthc, dv_bthc, ctx.turns, dqkv_btk)
        return dqkv_btk, None, None
