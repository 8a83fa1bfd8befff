"""Gates and normalizations of keys, queries and reads, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

KEY_EPS = 1e-6
"""Added to the norm of keys and queries."""


def unit(x: Tensor) -> Tensor:
    """Return x / (norm(x) + 1e-6) over the last axis (matrix-state specification 2)."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (norm + KEY_EPS)


def self_gate(y: Tensor) -> Tensor:
    """Return y * silu(y) = y^2 sigmoid(y), never negative (matrix-state specification 2)."""
    return y * functional.silu(y)
