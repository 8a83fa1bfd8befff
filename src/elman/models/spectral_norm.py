"""Spectral normalisation of a recurrent matrix, with an explicit power iteration.

The iteration advances only in :meth:`SpectralNorm.advance`, which the trainer causes once per
optimizer step. Forward passes, evaluation and recomputation all see the same vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.ops.precision import no_autocast, wide_dtype

ITERATIONS = 3
EPS = 1e-8


class SpectralNorm(nn.Module):
    """Scales a square matrix to a given largest singular value (vector-state specification 2.4).

    ``W_eff = W * radius / (sigma + 1e-8)`` with ``sigma = |u^T W v|``, differentiable in W with
    u and v constant. The estimate sigma approaches from below while the iteration converges.

    Args:
        size: Rows and columns of the matrix.
        radius: Largest singular value of the result.
    """

    u: Tensor
    v: Tensor

    def __init__(
        self,
        size: int,
        radius: float,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.radius = radius
        wide = wide_dtype(dtype or torch.get_default_dtype())
        self.register_buffer("u", torch.zeros(size, device=device, dtype=wide))
        self.register_buffer("v", torch.zeros(size, device=device, dtype=wide))

    @torch.no_grad()
    def reset(self, weight: Tensor) -> None:
        """Draw a new direction and advance once, so that sigma is defined before training."""
        self.u.copy_(functional.normalize(torch.randn_like(self.u), dim=0))
        self.advance(weight)

    @torch.no_grad()
    def advance(self, weight: Tensor) -> None:
        """Run three power iterations with the current weight."""
        with no_autocast(weight):
            matrix = weight.detach().to(self.u.dtype)
            for _ in range(ITERATIONS):
                self.v.copy_(_unit(self.u @ matrix))
                self.u.copy_(_unit(matrix @ self.v))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the matrix that the recurrence uses, in fp32 or wider."""
        with no_autocast(weight):
            matrix = weight.to(self.u.dtype)
            sigma = (self.u @ (matrix @ self.v)).abs()
            return matrix * (self.radius / (sigma + EPS))

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return f"size={self.u.shape[0]}, radius={self.radius}"


def _unit(vector: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(vector)
    return vector / (norm + EPS)
