"""The draw of a byte in plain PyTorch.

Shape legend: b texts, v values.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw(
    logits_bv: Tensor, uniform_b: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """Return one value for every text [b], int64.

    A value is found by its place on the line of cumulated probabilities, in the order of the
    probabilities, so that the same number gives the same value whoever asks. Order of the filters:
    temperature, then ``top_k``, then ``top_p``.

    Args:
        logits_bv: Logits, fp32.
        uniform_b: A number of [0, 1) for every text, fp32.
        temperature: 0 always takes the most probable value.
        top_k: Draw among the k most probable values; 0 is off.
        top_p: Draw among the smallest set with this probability; 1 is off.
    """
    if temperature == 0:
        return logits_bv.argmax(dim=-1)
    ordered_bv, order_bv = torch.sort(logits_bv / temperature, dim=-1, descending=True, stable=True)
    if top_k:
        ordered_bv = ordered_bv[:, :top_k]
    probability_bv = torch.softmax(ordered_bv, dim=-1)
    line_bv = probability_bv.cumsum(-1)
    if top_p < 1:
        # A value stays while the more probable ones have not reached top_p: at least one does.
        stays_bv = line_bv - probability_bv < top_p
        line_bv = (probability_bv * stays_bv).cumsum(-1)
    # The first value whose end on the line is not before the point; a value that was left out has
    # the same end as the last that stays, and comes after it.
    point_b1 = uniform_b.unsqueeze(-1) * line_bv[:, -1:]
    place_b1 = (line_bv < point_b1).sum(-1, keepdim=True)
    return order_bv.gather(-1, place_b1).squeeze(-1)
