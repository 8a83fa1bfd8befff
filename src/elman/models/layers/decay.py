"""Decay of a matrix state: one number in (0, 1) per head and step, always in fp32 or wider.

Shape legend: b batch, t time, h heads, c any
channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.ops.precision import wide_dtype


class Decay(nn.Module):
    """A decay that a layer computes from its projection, or from parameters alone."""

    def reset_parameters(self) -> None:
        """Draw the parameters, if there are any."""

    def forward(self, x_btc: Tensor) -> Tensor:
        """Return the decay [batch, time, heads] for these steps."""
        raise NotImplementedError


class MambaDecay(Decay):
    """decay = exp(-exp(A_log) * softplus(logit + dt_bias)) (matrix-state specification 12.1)."""

    def __init__(
        self,
        heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.a_log = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.dt_bias = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw rates and time steps."""
        init.mamba_decay_(self.a_log, self.dt_bias)

    def forward(self, x_btc: Tensor) -> Tensor:
        """Return the decay; bf16 would round everything above 0.998 to 1."""
        wide = wide_dtype(x_btc.dtype)
        step_bth = functional.softplus(x_btc.to(wide) + self.dt_bias.to(wide))
        return torch.exp(-self.a_log.to(wide).exp() * step_bth)


class SigmoidDecay(Decay):
    """decay = sigmoid(logit), without parameters."""

    def forward(self, x_btc: Tensor) -> Tensor:
        """Return the decay."""
        return torch.sigmoid(x_btc.to(wide_dtype(x_btc.dtype)))


class ConstantDecay(Decay):
    """decay = sigmoid(l), l learned per head and 4 at first."""

    def __init__(
        self,
        heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every logit to 4, a decay of 0.982."""
        nn.init.constant_(self.logit, 4.0)

    def forward(self, x_btc: Tensor) -> Tensor:
        """Return the decay, the same at every step; only the lengths of the input matter."""
        decay_h = torch.sigmoid(self.logit.to(wide_dtype(self.logit.dtype)))
        return decay_h.expand(*x_btc.shape[:2], -1)
