"""The implementations of the gated delta rule.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from elman.ops.common.backend import Backend
from elman.ops.common.precision import wide_dtype
from elman.ops.gated_delta import chunked, flash_qla, package

Run = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, Tensor | None],
    tuple[Tensor, Tensor],
]
"""The arguments of :func:`elman.ops.gated_delta.op.gated_delta_rule`, but for the backend."""
_EPS = 1e-6


def _chunked(
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
    dtype = wide_dtype(q_bthk.dtype)
    if state_bhvk is None:
        batch, _, heads, keys = q_bthk.shape
        state_bhvk = q_bthk.new_zeros(batch, heads, v_bthv.shape[3], keys, dtype=dtype)
    step_bth = functional.softplus(decay_bth.to(dtype) + dt_bias_h.to(dtype))
    write_bth = write_bth.to(dtype).sigmoid()
    return chunked.gated_delta_rule(
        _unit(q_bthk.to(dtype), q_bthk.shape[-1] ** -0.5),
        _unit(k_bthk.to(dtype), 1.0),
        v_bthv.to(dtype),
        step_bth * -a_log_h.to(dtype).exp(),
        write_bth if write_scale == 1.0 else write_bth * write_scale,
        state_bhvk,
    )


def _unit(x_bthk: Tensor, scale: float) -> Tensor:
    """Return ``scale`` x / sqrt(|x|^2 + 1e-6), per head."""
    squared = x_bthk.square().sum(-1, keepdim=True)
    return x_bthk * ((squared + _EPS).rsqrt() * scale)


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_chunked),
    "triton": Backend(package.gated_delta_rule, narrow=True),
    "flash_qla": Backend(flash_qla.gated_delta_rule, narrow=True),
}
"""By the name that ``kernels.backend`` has."""
