"""Large products over batch and time, and products whose result is wider than their factors.

Shape legend: b batch, t time, i channels of a state, c any channels, k, m and n any lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shifted(y_bti: Tensor, h_bi: Tensor, resets_bt: Tensor | None = None) -> Tensor:
    """Return the state before every step.

    Args:
        y_bti: State after every step.
        h_bi: State before the first one.
        resets_bt: Where the state is zero instead, bool; None: nowhere.
    """
    before_bti = torch.cat([h_bi.unsqueeze(1), y_bti[:, :-1]], dim=1)
    return before_bti if resets_bt is None else before_bti.masked_fill_(resets_bt[..., None], 0.0)


def outer(left_btc: Tensor, right_btc: Tensor, wide: torch.dtype) -> Tensor:
    """Return the sum of outer products over batch and time."""
    left_cn, right_nc = left_btc.flatten(0, 1).T, right_btc.flatten(0, 1)
    shape = (left_cn.shape[0], right_nc.shape[1])
    return multiply(left_cn, right_nc, left_cn.new_empty(shape, dtype=wide))


def multiply(left_mk: Tensor, right_kn: Tensor, to_mn: Tensor) -> Tensor:
    """Write a product to a tensor that may be wider than its factors; sums are as wide.

    Args:
        left_mk: Left factor.
        right_kn: Right factor, of the same dtype.
        to_mn: Where the product goes: in the dtype of the factors, or in fp32.

    Returns:
        ``to_mn``.
    """
    if left_mk.dtype == to_mn.dtype:
        return torch.mm(left_mk, right_kn, out=to_mn)
    if left_mk.is_cuda:
        return torch.mm(left_mk, right_kn, out_dtype=to_mn.dtype, out=to_mn)
    return torch.mm(left_mk.to(to_mn.dtype), right_kn.to(to_mn.dtype), out=to_mn)
