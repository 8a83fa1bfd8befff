"""The positive function g of minGRU and minLSTM, plain and as a logarithm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def positive(x: Tensor) -> Tensor:
    """Return g(x) = x + 1/2 for x >= 0, sigmoid(x) below (vector-state specification 5.3)."""
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


def log_positive(x: Tensor) -> Tensor:
    """Return log g(x), exact where g itself would underflow."""
    return torch.where(x >= 0, torch.log(functional.relu(x) + 0.5), functional.logsigmoid(x))
