"""The implementations of the delta rule with channel decays.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from elman.ops.channel_delta import chunked, package
from elman.ops.channel_delta.rules import Rule
from elman.ops.common.backend import Backend
from elman.ops.common.precision import wide_dtype

Run = Callable[[Rule, Tensor | None], tuple[Tensor, Tensor]]
"""The arguments of :func:`elman.ops.channel_delta.op.channel_delta`, but for the backend."""


def _chunked(rule: Rule, state_bhvk: Tensor | None) -> tuple[Tensor, Tensor]:
    dtype = wide_dtype(rule.q_bthk.dtype)
    if state_bhvk is None:
        batch, _, heads, keys = rule.q_bthk.shape
        state_bhvk = rule.q_bthk.new_zeros(batch, heads, rule.v_bthv.shape[3], keys, dtype=dtype)
    return chunked.channel_delta(rule.steps(dtype), state_bhvk)


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(_chunked),
    "triton": Backend(package.channel_delta, narrow=True),
}
"""By the name that ``kernels.backend`` has."""
