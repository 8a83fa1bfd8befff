"""The fused pointwise operations around RWKV-7's recurrence, from flash-linear-attention.

Shape legend: b batch, t time, d model width, h heads, k width of a head.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.packages import package_kernels


@uncompiled
def mixed(x_btd: Tensor, change_btd: Tensor, shares: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return x + change * share for each of six shares."""
    found: tuple[Tensor, ...] = _module("fused_addcmul").fused_addcmul_rwkv7(
        x_btd, change_btd, *shares
    )
    return found


@uncompiled
def scaled_key(k_btd: Tensor, a_btd: Tensor, share_d: Tensor) -> Tensor:
    """Return k (1 + (a - 1) share)."""
    found: Tensor = _module("fused_k_update").fused_k_rwkv7(k_btd, a_btd, share_d)
    return found


@uncompiled
def corrected(
    o_btd: Tensor,
    r_bthk: Tensor,
    k_bthk: Tensor,
    bonus_hk: Tensor,
    v_bthk: Tensor,
    gate_btd: Tensor,
) -> Tensor:
    """Return (o + (r k bonus summed over a head) v) gate."""
    found: Tensor = _module("gate_output_correction").gate_output_correction(
        o_btd, r_bthk, k_bthk, bonus_hk, v_bthk, gate_btd
    )
    return found


@cache
def _module(name: str) -> Any:
    return package_kernels("flash-linear-attention", f"ops.rwkv7.{name}")
