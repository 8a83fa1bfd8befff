"""The delta rule with channel decays on flash-linear-attention, called as its layers call it.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from elman.ops.channel_delta.rules import Gdn2, Kda, Rule, Rwkv7
from elman.ops.common.packages import package_kernels

RWKV7_LOWEST = -0.6065306597126334
"""Smallest logarithm of a decay of RWKV-7, -exp(-1/2)."""


def channel_delta(rule: Rule, state_bhvk: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run a rule; see :func:`elman.ops.channel_delta.op.channel_delta`."""
    if isinstance(rule, Kda):
        return _kda(rule, state_bhvk)
    # These two keep the state as [b, h, k, v].
    first_bhkv = None if state_bhvk is None else state_bhvk.mT.contiguous()
    y_bthv, last_bhkv = (
        _gdn2(rule, first_bhkv) if isinstance(rule, Gdn2) else _rwkv7(rule, first_bhkv)
    )
    return y_bthv, last_bhkv.mT


def _kda(rule: Kda, state_bhvk: Tensor | None) -> tuple[Tensor, Tensor]:
    y_bthv, state_bhvk = _kernels("kda").chunk_kda(
        q=rule.q_bthk,
        k=rule.k_bthk,
        v=rule.v_bthv,
        g=rule.decay_bthk,
        beta=rule.write_bth,
        A_log=rule.a_log_h,
        dt_bias=rule.dt_bias_hk,
        initial_state=state_bhvk,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=rule.write_scale == 2.0,
        state_v_first=True,
    )
    return y_bthv, state_bhvk


def _gdn2(rule: Gdn2, state_bhkv: Tensor | None) -> tuple[Tensor, Tensor]:
    y_bthv, state_bhkv = _kernels("gdn2").chunk_gdn2(
        q=rule.q_bthk,
        k=rule.k_bthk,
        v=rule.v_bthv,
        g=rule.log_decay_bthk,
        b=rule.erase_bthk,
        w=rule.write_bthv,
        initial_state=state_bhkv,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return y_bthv, state_bhkv


def _rwkv7(rule: Rwkv7, state_bhkv: Tensor | None) -> tuple[Tensor, Tensor]:
    y_bthv, state_bhkv = _kernels("rwkv7").chunk_rwkv7(
        r=rule.q_bthk,
        w=rule.log_decay_bthk,
        k=rule.k_bthk,
        v=rule.v_bthv,
        a=rule.a_bthk,
        b=rule.b_bthk,
        scale=1.0,
        initial_state=state_bhkv,
        output_final_state=True,
        safe_gate=True,
        lower_bound=RWKV7_LOWEST,
        chunk_size=64,
    )
    return y_bthv, state_bhkv


@cache
def _kernels(name: str) -> Any:
    return package_kernels("flash-linear-attention", f"ops.{name}")
