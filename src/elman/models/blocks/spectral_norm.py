"""Spectral normalization of a recurrent matrix or a product, with an explicit power iteration.

The iteration advances only in :meth:`SpectralNorm.advance`, which the trainer triggers once per
optimizer step. So forward passes, evaluation and recomputation all use the same vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from elman.models.blocks.wide import WideBuffers
from elman.ops.common.precision import no_autocast, wide_dtype
from elman.ops.spectral_norm.op import in_a_kernel, normalized

ITERATIONS = 3
EPS = 1e-8


class SpectralNorm(WideBuffers):
    """Scales a matrix to a given largest singular value (vector-state specification 2.4).

    ``W_eff = W * radius / (sigma + 1e-8)`` with ``sigma = |u^T W v|``, differentiable in W with
    u and v constant. The estimate sigma approaches from below while the iteration converges.

    W may be given as factors, W = F_1 F_2 ..., each differentiable; their product is never formed
    (vector-state specification 3.3).

    Args:
        size: Rows of the matrix.
        radius: Largest singular value of the result.
        columns: Columns of the matrix if it is not square (matrix-state specification 5).
    """

    u: Tensor
    v: Tensor

    def __init__(
        self,
        size: int,
        radius: float,
        *,
        columns: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.radius = radius
        wide = wide_dtype(dtype or torch.get_default_dtype())
        self.register_buffer("u", torch.zeros(size, device=device, dtype=wide))
        self.register_buffer("v", torch.zeros(columns or size, device=device, dtype=wide))

    @torch.no_grad()
    def reset(self, *factors: Tensor) -> None:
        """Draw a new direction and advance once, so that sigma is defined before training.

        On the meta device this does nothing.
        """
        if self.u.is_meta:
            return
        self.u.copy_(functional.normalize(torch.randn_like(self.u), dim=0))
        self.advance(*factors)

    @torch.no_grad()
    def advance(self, *factors: Tensor) -> None:
        """Run three power iterations with the current matrix, given as one matrix or as factors."""
        with no_autocast(self.u):
            wide = [factor.detach().to(self.u.dtype) for factor in factors]
            for _ in range(ITERATIONS):
                self.v.copy_(_unit(_times_product(self.u, wide)))
                self.u.copy_(_unit(_product_times(wide, self.v)))

    def scale(self, *factors: Tensor) -> Tensor:
        """Return radius / (sigma + 1e-8), a scalar in fp32 or wider, with its gradient."""
        with no_autocast(self.u):
            wide = [factor.to(self.u.dtype) for factor in factors]
            return self.radius / ((self.u @ _product_times(wide, self.v)).abs() + EPS)

    def forward(self, weight: Tensor, backend: str = "reference") -> Tensor:
        """Return the matrix that the recurrence uses, in fp32 or wider.

        Args:
            weight: W.
            backend: Name of the layer's backend; ``cuda`` computes in kernels.
        """
        if in_a_kernel(weight, self.u, self.v, backend):
            return normalized(weight, self.u, self.v, self.radius, EPS)
        return weight.to(self.u.dtype) * self.scale(weight)

    def factors(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return both factors, each multiplied by the square root of the product's scale."""
        root = self.scale(left, right).sqrt()
        return left.to(root.dtype) * root, right.to(root.dtype) * root

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return f"{self.u.shape[0]} x {self.v.shape[0]}, radius={self.radius}"


def _unit(vector: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(vector)
    return vector / (norm + EPS)


def _product_times(factors: Sequence[Tensor], vector: Tensor) -> Tensor:
    """Return F_1 (F_2 (... vector))."""
    for factor in reversed(factors):
        vector = factor @ vector
    return vector


def _times_product(vector: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Return ((vector F_1) F_2) ..."""
    for factor in factors:
        vector = vector @ factor
    return vector
