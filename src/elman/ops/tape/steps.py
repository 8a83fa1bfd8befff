"""The pointwise mathematics of the tape recurrence, in PyTorch.

Shape legend: b batch, i channels of the state, n slots of the tape, p = i or 2 i products with the
state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def read(tape_bni: Tensor, h_bi: Tensor, pre_bi: Tensor) -> Tensor:
    """Return h' = tanh(pre + sum_n s_n(h) M_n), pre = W_h h + input."""
    weight_bn1 = attention(tape_bni, h_bi)
    # In place: autograd then keeps the result alone.
    return torch.baddbmm(pre_bi.unsqueeze(1), weight_bn1.mT, tape_bni).tanh_().squeeze(1)


def write(tape_bni: Tensor, h_bi: Tensor, value_bi: Tensor) -> Tensor:
    """Return M' = (1 - s(h)) M + s(h) q for every slot, q the value."""
    return torch.lerp(tape_bni, value_bi.unsqueeze(1), attention(tape_bni, h_bi))


def attention(tape_bni: Tensor, h_bi: Tensor) -> Tensor:
    """Return the weight [b, n, 1] of every slot: softmax of <M_n, h> / sqrt(i)."""
    scores_bn1 = torch.bmm(tape_bni, h_bi.unsqueeze(-1)).mul_(h_bi.shape[-1] ** -0.5)
    return scores_bn1.softmax(dim=1)


def _last_product(h_bi: Tensor, product_bp: Tensor) -> Tensor:
    """Return the last i products: W_r h where there is W_r, and W_h h otherwise."""
    return product_bp[:, -h_bi.shape[-1] :]


def _state(h_bi: Tensor, product_bp: Tensor) -> Tensor:
    return h_bi


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "full": _last_product,
    "identity": _state,
    "shared": _last_product,
}
"""The value q that a step writes, from the new state and its products, by ``Write`` of op.py."""
