"""Gates and normalizations of keys, queries and reads, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.precision import wide_dtype

KEY_EPS = 1e-6
"""Added to the norm of keys and queries."""


def unit(x: Tensor) -> Tensor:
    """Return x / (norm(x) + 1e-6) over the last axis (matrix-state specification 2)."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (norm + KEY_EPS)


def softplus_decay(logit: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Return exp(-exp(a_log) softplus(logit + dt_bias)) in fp32 or wider.

    Args:
        logit: Logits of the decay [..., heads].
        a_log: Logarithm of each head's rate.
        dt_bias: Added to its logits.
    """
    wide = wide_dtype(logit.dtype)
    step = functional.softplus(logit.to(wide) + dt_bias.to(wide))
    return torch.exp(-a_log.to(wide).exp() * step)


def self_gate(y: Tensor) -> Tensor:
    """Return y * silu(y) = y^2 sigmoid(y), never negative (matrix-state specification 2)."""
    return y * functional.silu(y)
