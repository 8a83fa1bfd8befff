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


def outer_before(
    left_btc: Tensor,
    y_bti: Tensor,
    h_bi: Tensor,
    wide: torch.dtype,
    resets_bt: Tensor | None = None,
) -> Tensor:
    """Return the sum of outer products of a sequence with the state before every step.

    It copies no states: in the order of memory, the number before that of a step is its state
    before, but for first steps. What first steps add wrongly is taken back.

    Args:
        left_btc: The other sequence.
        y_bti: State after every step.
        h_bi: State before the first one.
        wide: Dtype of the sums.
        resets_bt: Where the state is zero instead, bool; None: nowhere.
    """
    if resets_bt is not None:
        left_btc = left_btc.masked_fill(resets_bt[..., None], 0.0)
        h_bi = h_bi.masked_fill(resets_bt[:, :1], 0.0)  # zero times NaN would be NaN
    left_nc, y_ni = left_btc.flatten(0, 1), y_bti.flatten(0, 1)
    total_ci = left_nc.new_empty((left_nc.shape[1], y_ni.shape[1]), dtype=wide)
    multiply(left_nc[1:].T, y_ni[:-1], total_ci)
    first_bc = left_btc[:, 0]
    taken_bc, given_bi = torch.cat([first_bc, first_bc[1:]]), torch.cat([h_bi, -y_bti[:-1, -1]])
    return total_ci.add_(multiply(taken_bc.T, given_bi, torch.empty_like(total_ci)))


def outer(left_btc: Tensor, right_btc: Tensor, wide: torch.dtype) -> Tensor:
    """Return the sum of outer products over batch and time."""
    left_cn, right_nc = left_btc.flatten(0, 1).T, right_btc.flatten(0, 1)
    shape = (left_cn.shape[0], right_nc.shape[1])
    return multiply(left_cn, right_nc, left_cn.new_empty(shape, dtype=wide))


def multiply(left_mk: Tensor, right_kn: Tensor, to_mn: Tensor) -> Tensor:
    """Write a product to a tensor that may be wider than its factors; sums are as wide.

    Args:
        left_mk: Left factor, or one for each of several products.
        right_kn: Right factor, of the same dtype.
        to_mn: Where the product goes: in the dtype of the factors, or in fp32.

    Returns:
        ``to_mn``.
    """
    product = torch.mm if left_mk.ndim == 2 else torch.bmm
    if left_mk.dtype == to_mn.dtype:
        return product(left_mk, right_kn, out=to_mn)
    if left_mk.is_cuda:
        return product(left_mk, right_kn, out_dtype=to_mn.dtype, out=to_mn)
    return product(left_mk.to(to_mn.dtype), right_kn.to(to_mn.dtype), out=to_mn)
