"""Products of decays between the steps of a chunk of time, from the decays' logarithms.

Every exponent is a sum of logarithms over a stretch of steps, so nothing overflows and no decay
is divided by. The sums are differences of running sums, which cancel badly after a step that
forgets nearly everything; they are therefore held in two parts, together as exact as fp64.

Shape legend: l (and m) step within a chunk; the leading axes belong to the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChunkDecays:
    """Products of the decays of one chunk.

    Attributes:
        between: [..., l, m] over the steps after m up to l; 1 at l = m, 0 for m > l.
        since_start: [..., l] up to and with step l.
        until_end: [..., l] after step l.
        whole: [...] over all steps.
    """

    between: Tensor
    since_start: Tensor
    until_end: Tensor
    whole: Tensor


def chunk_decays(log_decay_l: Tensor) -> ChunkDecays:
    """Return the products of ``exp(log_decay_l)`` over stretches of the last axis.

    Args:
        log_decay_l: Logarithms, at most 0, fp32 or wider.

    Returns:
        Products in the dtype of the logarithms. Gradients reach the logarithms.
    """
    dtype = log_decay_l.dtype
    total_l = log_decay_l.double().cumsum(-1)
    return ChunkDecays(
        _between(total_l, dtype),
        total_l.exp().to(dtype),
        (total_l[..., -1:] - total_l).exp().to(dtype),
        total_l[..., -1].exp().to(dtype),
    )


def _between(total_l: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exp(total at l - total at m) where m <= l, and 0 elsewhere, in ``dtype``."""
    coarse_l = total_l.detach().to(dtype)
    # Carries what rounding to dtype lost, and the whole gradient.
    fine_l = (total_l - coarse_l).to(dtype)
    length = total_l.shape[-1]
    future_lm = torch.ones(length, length, dtype=torch.bool, device=total_l.device).triu(1)
    exponent_lm = coarse_l.unsqueeze(-1) - coarse_l.unsqueeze(-2)
    # Before exp: the exponents of the future are positive. In place: one buffer instead of five.
    exponent_lm.masked_fill_(future_lm, -torch.inf)
    exponent_lm.add_(fine_l.unsqueeze(-1)).sub_(fine_l.unsqueeze(-2))
    return exponent_lm.exp_()
