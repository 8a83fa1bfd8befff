"""The delta rule with channel decays step by step: what its other forms are checked against.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ops.channel_delta.rules import Steps


def channel_delta(steps: Steps, state_bhvk: Tensor) -> tuple[Tensor, Tensor]:
    """Run S' = S diag(c) + (S a) b^T + v k^T, y = S' q, c = exp(log_decay), step by step.

    Args:
        steps: The sequences.
        state_bhvk: State before the first step.

    Returns:
        Reads y_bthv and the state after the last step.
    """
    reads = []
    for q_bhk, k_bhk, v_bhv, a_bhk, b_bhk, log_bhk in zip(
        *(one.unbind(1) for one in steps), strict=True
    ):
        read_bhv = (state_bhvk @ a_bhk.unsqueeze(-1)).squeeze(-1)
        state_bhvk = state_bhvk * log_bhk.exp().unsqueeze(-2)
        state_bhvk = state_bhvk + read_bhv.unsqueeze(-1) * b_bhk.unsqueeze(-2)
        state_bhvk = state_bhvk + v_bhv.unsqueeze(-1) * k_bhk.unsqueeze(-2)
        reads.append((state_bhvk @ q_bhk.unsqueeze(-1)).squeeze(-1))
    return torch.stack(reads, dim=1), state_bhvk
