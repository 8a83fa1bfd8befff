"""Drawing the next byte from a model's logits, on the device where they are.

Shape legend: b rows, v byte values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How a byte is chosen.

    Attributes:
        temperature: 0 always takes the most probable byte.
        top_k: Draw among the k most probable bytes; 0 is off.
        top_p: Draw among the smallest set with this probability; 1 is off.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0


def draw(logits_bv: Tensor, uniform_b: Tensor, sampling: Sampling) -> Tensor:
    """Return one byte a row [b], int64.

    A byte is found by its place on the line of cumulated probabilities, so that the same number
    gives the same byte in an eager loop and in a CUDA graph. Order of the filters: temperature,
    then ``top_k``, then ``top_p``.

    Args:
        logits_bv: Logits, fp32.
        uniform_b: One number of [0, 1) a row, fp32, on the same device.
        sampling: How to choose.
    """
    if sampling.temperature == 0:
        return logits_bv.argmax(dim=-1)
    ordered_bv, order_bv = torch.sort(logits_bv / sampling.temperature, descending=True)
    if sampling.top_k:
        ordered_bv = ordered_bv[:, : sampling.top_k]
    probability_bv = torch.softmax(ordered_bv, dim=-1)
    line_bv = probability_bv.cumsum(-1)
    if sampling.top_p < 1:
        # A byte stays while the more probable ones have not reached top_p: at least one does.
        kept_bv = line_bv - probability_bv < sampling.top_p
        line_bv = (probability_bv * kept_bv).cumsum(-1)
    # The first byte whose end on the line is not before the point; a byte that was left out has
    # the same end as the last that was kept, and comes after it.
    point_b1 = uniform_b.unsqueeze(-1) * line_bv[:, -1:]
    place_b1 = (line_bv < point_b1).sum(-1, keepdim=True)
    return order_bv.gather(-1, place_b1).squeeze(-1)
