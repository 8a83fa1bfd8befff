"""The gated delta rule on the package flash-linear-attention, called as its own layer calls it.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.packages import package_kernels


def gated_delta_rule(
    q_bthk: Tensor,
    k_bthk: Tensor,
    v_bthv: Tensor,
    decay_bth: Tensor,
    write_bth: Tensor,
    a_log_h: Tensor,
    dt_bias_h: Tensor,
    write_scale: float,
    state_bhvk: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence; see :func:`elman.ops.gated_delta.op.gated_delta_rule`."""
    y_bthv, state_bhvk = _rule().chunk_gated_delta_rule(
        q=q_bthk,
        k=k_bthk,
        v=v_bthv,
        g=decay_bth,
        beta=write_bth,
        initial_state=state_bhvk,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=write_scale == 2.0,
        state_v_first=True,
        use_gate_in_kernel=True,
        A_log=a_log_h,
        dt_bias=dt_bias_h,
    )
    return y_bthv, state_bhvk


@uncompiled
def gated_norm(
    y_bthv: Tensor, gate_bthv: Tensor, gain_v: Tensor, activation: str, epsilon: float
) -> Tensor:
    """Return the RMSNorm of y per head times an activation of the gate."""
    normed: Tensor = _norm().rms_norm_gated(
        y_bthv, gate_bthv, gain_v, None, activation, eps=epsilon
    )
    return normed


@cache
def _rule() -> Any:
    return package_kernels("flash-linear-attention", "ops.gated_delta_rule")


@cache
def _norm() -> Any:
    return package_kernels("flash-linear-attention", "modules.norm.fused_norm_gate")
