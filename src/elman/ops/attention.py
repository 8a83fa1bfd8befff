"""Causal attention with rotary positions, continued from the keys and values of earlier calls.

Shape legend: b batch, t the newest positions (those that ask), s all positions, h heads, c channels
of a head, p = c / 2 pairs of them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from elman.ops.common.checks import check, empty_results, is_empty
from elman.ops.common.precision import wide_dtype
from elman.ops.common.transforms import transformed

_WITHOUT_PLANS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def causal_attention(
    q_bthc: Tensor, k_bshc: Tensor, v_bshc: Tensor, *, theta: float, context: int
) -> Tensor:
    """Return softmax(q k^T / sqrt(c)) v of the newest t of s positions, [b, t, h, c].

    Queries and keys are rotated by the angles of their positions (lm-and-training specification
    5.3). Positions count from the first key, since only differences matter. Angles and rotations
    are in fp32 or wider. PyTorch's fused kernel computes the rest in the inputs' dtype.

    Args:
        q_bthc: Queries of the newest positions, not yet turned.
        k_bshc: Keys of all positions, not yet turned.
        v_bshc: Values of all positions.
        theta: Base of the wavelengths.
        context: Positions that each position sees, itself included; 0 is every one before it.

    Raises:
        ValueError: keys or values have another batch, width, dtype or device than the queries.
    """
    batch, _, heads, channels = q_bthc.shape
    for name, one in (("keys", k_bshc), ("values", v_bshc)):
        shape = (batch, None, heads, channels)
        check(f"{name} of causal_attention", one, shape, q_bthc.device, (q_bthc.dtype,))
    if is_empty(q_bthc):
        return empty_results(q_bthc.shape, q_bthc.dtype, [], [q_bthc, k_bshc, v_bshc])[0]
    first = k_bshc.shape[1] - q_bthc.shape[1]
    q_bthc, k_bshc = rotate(q_bthc, first, theta), rotate(k_bshc, 0, theta)
    return attend(q_bthc, k_bshc, v_bshc, context=context)


def attend(q_bthc: Tensor, k_bshc: Tensor, v_bshc: Tensor, *, context: int) -> Tensor:
    """Return what :func:`causal_attention` does, of queries and keys that were turned already.

    Args:
        q_bthc: Queries of the newest positions, at least one.
        k_bshc: Keys of all positions.
        v_bshc: Values of all positions.
        context: Positions that each position sees, itself included; 0 is every one before it.
    """
    asked, known = q_bthc.shape[1], k_bshc.shape[1]
    q_bhtc, k_bhsc, v_bhsc = (one.transpose(1, 2) for one in (q_bthc, k_bshc, v_bshc))
    seen_ts = None
    narrow = 0 < context < known
    if narrow or 1 < asked < known:
        seen_ts = visible(asked, known, context, q_bthc.device)
    causal = seen_ts is None and asked > 1
    return _attention(q_bhtc, k_bhsc, v_bhsc, seen_ts, causal).transpose(1, 2)


def rotate(x_bthc: Tensor, first: int, theta: float) -> Tensor:
    """Turn channels 2p and 2p + 1 of position ``first`` + t by (first + t) theta^(-2p / c)."""
    steps, channels = x_bthc.shape[1], x_bthc.shape[3]
    wide = wide_dtype(x_bthc.dtype)
    to: dict[str, Any] = {"dtype": wide, "device": x_bthc.device}
    rate_p = theta ** (torch.arange(0, channels, 2, **to) / -channels)
    angle_tp = torch.arange(first, first + steps, **to)[:, None] * rate_p
    # A compiler fuses the real form, and has no code for complex numbers. Without a compiler, the
    # complex form reads and writes a third as much.
    turn = turned_as_real if torch.compiler.is_compiling() else turned_as_complex
    x_bthp2 = x_bthc.to(wide).unflatten(-1, (-1, 2))
    return turn(x_bthp2, angle_tp[:, None]).flatten(-2).to(x_bthc.dtype)


def turned_as_complex(x_bthp2: Tensor, angle_t1p: Tensor) -> Tensor:
    """Turn pairs of channels as complex numbers."""
    turn_t1p = torch.polar(torch.ones_like(angle_t1p), angle_t1p)
    return torch.view_as_real(torch.view_as_complex(x_bthp2) * turn_t1p)


def turned_as_real(x_bthp2: Tensor, angle_t1p: Tensor) -> Tensor:
    """Turn pairs of channels by products of real numbers."""
    cos_t1p, sin_t1p = angle_t1p.cos(), angle_t1p.sin()
    even_bthp, odd_bthp = x_bthp2.unbind(-1)
    turned = (
        even_bthp * cos_t1p - odd_bthp * sin_t1p,
        even_bthp * sin_t1p + odd_bthp * cos_t1p,
    )
    return torch.stack(turned, dim=-1)


def visible(asked: int, known: int, context: int, device: torch.device) -> Tensor:
    """Return which of ``known`` positions each of the newest ``asked`` sees, a boolean [t, s]."""
    key_s = torch.arange(known, device=device)
    query_t1 = torch.arange(known - asked, known, device=device)[:, None]
    seen_ts = key_s <= query_t1
    return seen_ts & (key_s > query_t1 - context) if context else seen_ts


def _attention(
    q_bhtc: Tensor, k_bhsc: Tensor, v_bhsc: Tensor, seen_ts: Tensor | None, causal: bool
) -> Tensor:
    if q_bhtc.is_meta:
        # The public function has no fused kernel for this device. Its decomposition would count
        # scores [b, h, t, s] that no real device stores, and make memory estimates far too high.
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        shaped: Tensor = fused(q_bhtc, k_bhsc, v_bhsc, 0.0, causal, attn_mask=None)[0]
        return shaped
    backends = None
    if transformed():  # the fused kernels have no forward-mode derivative
        backends = [SDPBackend.MATH]
    elif q_bhtc.shape[2] < k_bhsc.shape[2]:
        # cuDNN's attention is the first choice on newer GPUs, and plans 70 ms for each number of
        # keys.
        backends = _WITHOUT_PLANS
    with nullcontext() if backends is None else sdpa_kernel(backends):
        return functional.scaled_dot_product_attention(
            q_bhtc, k_bhsc, v_bhsc, attn_mask=seen_ts, is_causal=causal
        )
