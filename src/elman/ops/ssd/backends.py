"""The implementations of Mamba2's recurrence.

Shape legend: b batch, t time, h heads, p channels of a head, g groups of heads that share B and C,
n state columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.backend import Backend
from elman.ops.common.precision import wide_dtype
from elman.ops.ssd import chunked, package

Run = Callable[
    [Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, int],
    tuple[Tensor, Tensor],
]
"""The arguments of :func:`elman.ops.ssd.op.selective_scan`, but for the backend."""


def _chunked(
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
    dtype = wide_dtype(x_bthp.dtype)
    if state_bhpn is None:
        batch, _, heads, rows = x_bthp.shape
        state_bhpn = x_bthp.new_zeros(batch, heads, rows, b_btgn.shape[3], dtype=dtype)
    x_bthp, b_btgn, c_btgn = (one.to(dtype) for one in (x_bthp, b_btgn, c_btgn))
    step_bth = functional.softplus(dt_bth.to(dtype) + dt_bias_h.to(dtype))
    y_bthp, state_bhpn = chunked.ssd(
        x_bthp * step_bth.unsqueeze(-1),
        step_bth * -a_log_h.to(dtype).exp(),
        b_btgn,
        c_btgn,
        state_bhpn,
        chunk or chunked.CHUNK,
    )
    return torch.addcmul(y_bthp, x_bthp, skip_h.to(dtype).unsqueeze(-1)), state_bhpn


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_chunked),
    "triton": Backend(package.selective_scan, narrow=True),
}
"""By the name that ``kernels.backend`` has."""
