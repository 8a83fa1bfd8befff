"""The norms of the language model and of the cells' outputs.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.ops.precision import compute_dtype, wide_dtype

EPS = 1e-5
"""Added to the mean square (RMSNorm) or the variance (LayerNorm), as in every published run."""


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * gain over the last axis, in fp32 or wider.

    Args:
        x: Input; half-precision input is widened first.
        gain: Gain of the last axis.
    """
    wide = x.to(wide_dtype(x.dtype))
    return functional.rms_norm(wide, gain.shape, gain.to(wide.dtype), EPS)


class RMSNorm(nn.Module):
    """RMSNorm with a gain and fp32 statistics (lm-and-training specification 1.2)."""

    def __init__(
        self,
        dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set the gain to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x_btd: Tensor) -> Tensor:
        """Normalise the fp32 residual stream; the result has the mixers' compute dtype."""
        return rms_norm(x_btd, self.weight).to(compute_dtype(x_btd, self.weight.dtype))


class LayerNorm(nn.LayerNorm):
    """LayerNorm with gain and bias, eps 1e-5, statistics in fp32 (wrapper before 2026-01-11)."""

    def __init__(
        self,
        dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, eps=EPS, device=device, dtype=dtype)

    def forward(self, x_btd: Tensor) -> Tensor:
        """Normalise the residual stream; the result has the mixers' compute dtype."""
        wide = wide_dtype(x_btd.dtype)
        y_btd = functional.layer_norm(
            x_btd.to(wide),
            self.normalized_shape,
            self.weight.to(wide),
            self.bias.to(wide),
            self.eps,
        )
        return y_btd.to(compute_dtype(x_btd, self.weight.dtype))
