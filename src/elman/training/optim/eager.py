"""Optimizers of PyTorch without the import of Dynamo, which takes more than a second.

PyTorch keeps torch.compile out of an optimizer's methods by Dynamo itself, and imports it at their
first call. No run compiles its optimizer, so these call what the decorators surround. That is a
third of the time before the first step of a small run.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch.optim import Optimizer


class EagerOptimizer(Optimizer):
    """The methods that all optimizers share. It stands before an optimizer among the bases."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """PyTorch's AdamW, bit for bit."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        assert closure is None, "the gradients are there already"
        unwrap(torch.optim.AdamW.step)(self)
