"""Mamba2's recurrence step by step: what every other form of it is checked against.

Shape legend: b batch, t time, h heads, p channels of a head, g groups of heads that share B and C,
n state columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ssd(
    x_bthp: Tensor,
    log_decay_bth: Tensor,
    b_btgn: Tensor,
    c_btgn: Tensor,
    state_bhpn: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run S' = exp(log_decay) S + x B^T, y = S' C, one step after the other.

    Dao and Gu 2024, Transformers are SSMs, equation 1 with scalar A; lm-and-training specification
    5.1, where x is the input times its time step.

    Args:
        x_bthp: What is written, in value rows.
        log_decay_bth: Logarithm of each head's decay.
        b_btgn: Columns written to; head i belongs to group i // (heads / groups).
        c_btgn: Columns read.
        state_bhpn: State before the first step.

    Returns:
        Reads y_bthp and the state after the last step.
    """
    heads = x_bthp.shape[2] // b_btgn.shape[2]
    b_bthn, c_bthn = (one.repeat_interleave(heads, dim=2) for one in (b_btgn, c_btgn))
    reads = []
    for t in range(x_bthp.shape[1]):
        written_bhpn = x_bthp[:, t].unsqueeze(-1) * b_bthn[:, t].unsqueeze(-2)
        state_bhpn = log_decay_bth[:, t, :, None, None].exp() * state_bhpn + written_bhpn
        reads.append((state_bhpn @ c_bthn[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(reads, dim=1), state_bhpn
