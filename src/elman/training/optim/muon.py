"""Muon, with products in bf16 as in torch, or in fp32.

torch.optim.Muon makes the update of a matrix orthogonal by products in bf16. A CPU without
instructions for bf16 takes 15 times as long for them as for products in fp32.

Shapes: m rows, n columns; the iteration works on a matrix with m <= n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elman.devices.cpu import multiplies_bf16

Precision = Literal["fp32", "bf16"]


def fast_precision(device: torch.device) -> Precision:
    """Return the precision in which a device multiplies matrices fast enough for Muon."""
    return "bf16" if device.type != "cpu" or multiplies_bf16() else "fp32"


class Muon(torch.optim.Muon):
    """torch's optimizer, bit for bit in bf16; in fp32 the same formula without its rounding.

    Args:
        matrices: The weights, [m, n], fp32.
        precision: Precision of the products.
        settings: As for torch's, which always has Nesterov's momentum here.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], precision: Precision, **settings: Any
    ) -> None:
        super().__init__(matrices, adjust_lr_fn="match_rms_adamw", **settings)
        self.precision = precision

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None, "the gradients are there already"
        if self.precision == "bf16":
            super().step()  # type: ignore[no-untyped-call]
            return
        for group in self.param_groups:
            for weight_mn in group["params"]:
                if weight_mn.grad is not None:
                    self._update(weight_mn, group)

    def _update(self, weight_mn: nn.Parameter, group: dict[str, Any]) -> None:
        gradient_mn, state = weight_mn.grad, self.state[weight_mn]
        assert gradient_mn is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient_mn)
        momentum_mn, share = state["momentum_buffer"], group["momentum"]
        momentum_mn.lerp_(gradient_mn, 1 - share)
        update_mn = orthogonal(
            gradient_mn.lerp(momentum_mn, share),
            group["ns_coefficients"],
            group["ns_steps"],
            group["eps"],
        )
        # As large as AdamW's updates, so that rates and decay mean the same ("match_rms_adamw").
        rate = group["lr"] * 0.2 * max(weight_mn.shape) ** 0.5
        weight_mn.mul_(1 - group["lr"] * group["weight_decay"])
        weight_mn.add_(update_mn, alpha=-rate)


def orthogonal(
    matrix_mn: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return a matrix with the singular vectors of another, and singular values near 1.

    The quintic iteration of Newton and Schulz as Keller Jordan chose it for Muon
    (https://kellerjordan.github.io/posts/muon/): ``X' = a X + (b A + c A A) X`` with ``A = X X^T``.

    Args:
        matrix_mn: The matrix, in the dtype of the products.
        coefficients: a, b and c.
        steps: How often.
        eps: The norm that the matrix is divided by is at least this.
    """
    a, b, c = coefficients
    x_mn = matrix_mn.T if matrix_mn.size(0) > matrix_mn.size(1) else matrix_mn
    x_mn = x_mn / x_mn.norm().clamp(min=eps)
    for _ in range(steps):
        gram_mm = x_mn @ x_mn.T
        polynomial_mm = torch.addmm(gram_mm, gram_mm, gram_mm, beta=b, alpha=c)
        x_mn = torch.addmm(x_mn, polynomial_mm, x_mn, beta=a)
    return x_mn.T if matrix_mn.size(0) > matrix_mn.size(1) else x_mn
