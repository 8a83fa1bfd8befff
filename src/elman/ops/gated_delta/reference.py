"""The gated delta rule step by step: what every other form of it is checked against.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gated_delta_rule(
    q_bthk: Tensor,
    k_bthk: Tensor,
    v_bthv: Tensor,
    log_decay_bth: Tensor,
    beta_bth: Tensor,
    state_bhvk: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run S' = c S + beta (v - c S k) k^T, y = S' q, c = exp(log_decay), step by step.

    Yang, Kautz and Hatamizadeh 2025, Gated Delta Networks, equation 10: S' = c S (I - beta k k^T)
    + beta v k^T; lm-and-training specification 5.2.

    Args:
        q_bthk: Queries, already normalized and scaled.
        k_bthk: Keys, already normalized.
        v_bthv: Values.
        log_decay_bth: Logarithm of each head's decay.
        beta_bth: Strength of each write.
        state_bhvk: State before the first step.

    Returns:
        Reads y_bthv and the state after the last step.
    """
    reads = []
    for t in range(q_bthk.shape[1]):
        k_bhk, v_bhv = k_bthk[:, t], v_bthv[:, t]
        state_bhvk = log_decay_bth[:, t, :, None, None].exp() * state_bhvk
        error_bhv = v_bhv - (state_bhvk @ k_bhk.unsqueeze(-1)).squeeze(-1)
        error_bhv = beta_bth[:, t].unsqueeze(-1) * error_bhv
        state_bhvk = state_bhvk + error_bhv.unsqueeze(-1) * k_bhk.unsqueeze(-2)
        reads.append((state_bhvk @ q_bthk[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(reads, dim=1), state_bhvk
