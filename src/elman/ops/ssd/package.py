"""Mamba2, and what stands around Mamba3, on the Triton kernels of the package mamba-ssm.

They are called as the package's own layers call them.

Shape legend: b batch, t time, h heads, p channels of a head, g groups of heads,
n state columns, i = h p.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from elman.kernels.uncompiled import uncompiled
from elman.ops.common.packages import package_kernels

CHUNK = 256
"""Steps of a chunk in the package's own layer."""


def selective_scan(
    x_bthp: Tensor,
    dt_bth: Tensor,
    b_btgn: Tensor,
    c_btgn: Tensor,
    a_log_h: Tensor,
    dt_bias_h: Tensor,
    skip_h: Tensor,
    state_bhpn: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence; see :func:`elman.ops.ssd.op.selective_scan`."""
    y_bthp, state_bhpn = _kernels().mamba_chunk_scan_combined(
        x_bthp,
        dt_bth,
        -a_log_h.float().exp(),
        b_btgn,
        c_btgn,
        chunk_size=chunk or CHUNK,
        D=skip_h,
        dt_bias=dt_bias_h,
        initial_states=state_bhpn,
        dt_softplus=True,
        return_final_states=True,
    )
    return y_bthp, state_bhpn


@uncompiled
def gated_norm(y_bti: Tensor, z_bti: Tensor, gain_i: Tensor, groups: int, epsilon: float) -> Tensor:
    """Return the RMSNorm, group by group, of y silu(z)."""
    width = gain_i.shape[0] // groups
    normed: Tensor = _norm().rmsnorm_fn(
        y_bti, gain_i, None, z=z_bti, eps=epsilon, group_size=width, norm_before_gate=False
    )
    return normed


@uncompiled
def column_norm(x_btgn: Tensor, gain_n: Tensor, epsilon: float) -> Tensor:
    """Return the RMSNorm of Mamba3's columns, in the dtype of the input."""
    normed: Tensor = _norm().rmsnorm_fn(x_btgn, gain_n, None, eps=epsilon)
    return normed


@cache
def _kernels() -> Any:
    return package_kernels("mamba-ssm", "ops.triton.ssd_combined")


@cache
def _norm() -> Any:
    return package_kernels("mamba-ssm", "ops.triton.layernorm_gated")
