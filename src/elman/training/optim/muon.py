"""Muon, with products in bf16 as in torch, or in fp32.

torch.optim.Muon makes the update of a matrix orthogonal by products in bf16. A CPU with AVX2 takes
15 times as long for them as for products in fp32. One with instructions for bf16 takes as long as
for the products in fp32 here, which multiply matrices of one shape together; so fp32 is the choice
on every CPU. There a kernel, which takes two thirds of that time, updates all but very large
matrices (:mod:`.muon_kernel`).

Shapes: k matrices of m rows and n columns; the iteration works on matrices with m <= n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elman.training.optim import muon_kernel
from elman.training.optim.eager import EagerOptimizer
from elman.training.optim.muon_kernel import Moved

Precision = Literal["fp32", "bf16"]
# Numbers of the matrices that are multiplied together, so that each thread has one of its own. A
# larger matrix keeps all threads busy alone, and copies of several would need memory.
_TOGETHER = 1 << 20


def fast_precision(device: torch.device) -> Precision:
    """Return the precision in which Muon's products are fast on a device."""
    return "fp32" if device.type == "cpu" else "bf16"


class Muon(EagerOptimizer, torch.optim.Muon):
    """torch's optimizer, bit for bit in bf16; in fp32 the same formula without its rounding.

    Args:
        matrices: The weights, [m, n], fp32.
        precision: Precision of the products.
        backend: ``cpu`` updates matrices in the kernel where it takes them, in fp32; the others are
            PyTorch's operations.
        settings: As for torch's; momentum is Nesterov's.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        precision: Precision,
        backend: str = "reference",
        **settings: Any,
    ) -> None:
        super().__init__(matrices, adjust_lr_fn="match_rms_adamw", **settings)
        self.precision, self.backend = precision, backend

    def prepare(self) -> None:
        """Compile the kernel, if it updates matrices."""
        if self.backend == "cpu" and self.precision == "fp32":
            muon_kernel.prepare()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None, "the gradients are there already"
        if self.precision == "bf16":
            super().step()  # type: ignore[no-untyped-call]
            return
        for group in self.param_groups:
            moved = [weight_mn for weight_mn in group["params"] if weight_mn.grad is not None]
            for weights_mn in _together(moved):
                self._update(weights_mn, group)

    def _update(self, weights_mn: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        """Update matrices of one shape."""
        moved = [self._moved(weight_mn) for weight_mn in weights_mn]
        # As large as AdamW's updates, so that rates and decay mean the same ("match_rms_adamw").
        rate = group["lr"] * 0.2 * max(weights_mn[0].shape) ** 0.5
        if self.backend == "cpu" and muon_kernel.takes(moved):
            muon_kernel.update(moved, group, rate)
            return
        steps_kmn = torch.stack([_averaged(one, group["momentum"]) for one in moved])
        settings = (group["ns_coefficients"], group["ns_steps"], group["eps"])
        for weight_mn, step_mn in zip(weights_mn, orthogonal(steps_kmn, *settings), strict=True):
            weight_mn.mul_(1 - group["lr"] * group["weight_decay"])
            weight_mn.add_(step_mn, alpha=-rate)

    def _moved(self, weight_mn: nn.Parameter) -> Moved:
        """Return a matrix with its gradient and the moving average of its gradients."""
        gradient_mn, state = weight_mn.grad, self.state[weight_mn]
        assert gradient_mn is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient_mn)
        return Moved(weight_mn, gradient_mn, state["momentum_buffer"])


def _averaged(moved: Moved, share: float) -> Tensor:
    """Add a gradient to its moving average; return Nesterov's look ahead."""
    _, gradient_mn, momentum_mn = moved
    momentum_mn.lerp_(gradient_mn, 1 - share)
    return gradient_mn.lerp(momentum_mn, share)


def _together(weights_mn: Sequence[nn.Parameter]) -> Iterator[Sequence[nn.Parameter]]:
    """Yield the matrices in groups of one shape: several small ones, or a large one."""
    of_shape: dict[torch.Size, list[nn.Parameter]] = {}
    for weight_mn in weights_mn:
        of_shape.setdefault(weight_mn.shape, []).append(weight_mn)
    for shape, alike in of_shape.items():
        count = max(1, _TOGETHER // max(1, shape.numel()))
        for first in range(0, len(alike), count):
            yield alike[first : first + count]


def orthogonal(
    matrices_kmn: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return matrices with the singular vectors of others, and singular values near 1.

    The quintic iteration of Newton and Schulz as Keller Jordan chose it for Muon
    (https://kellerjordan.github.io/posts/muon/): ``X' = a X + (b A + c A A) X`` with ``A = X X^T``.

    Args:
        matrices_kmn: The matrices, in the dtype of the products.
        coefficients: a, b and c.
        steps: How often.
        eps: The norm that a matrix is divided by is at least this.
    """
    tall = matrices_kmn.size(1) > matrices_kmn.size(2)
    x_kmn = matrices_kmn.mT if tall else matrices_kmn
    x_kmn = x_kmn / torch.linalg.matrix_norm(x_kmn, keepdim=True).clamp(min=eps)
    wide = x_kmn.size(2) > 1.5 * x_kmn.size(1)  # from here on fewer operations
    iterate = _iterate_gram if wide else _iterate
    x_kmn = iterate(x_kmn, coefficients, steps)
    return x_kmn.mT if tall else x_kmn


def _iterate(x_kmn: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Return the iteration's result as it is written: 2 m n + m m products of m a step."""
    a, b, c = coefficients
    for _ in range(steps):
        gram_kmm = x_kmn @ x_kmn.mT
        polynomial_kmm = torch.baddbmm(gram_kmm, gram_kmm, gram_kmm, beta=b, alpha=c)
        x_kmn = torch.baddbmm(x_kmn, polynomial_kmm, x_kmn, beta=a)
    return x_kmn


def _iterate_gram(x_kmn: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Return the same from the Gram matrix ``A = X X^T`` alone: 4 m m products of m a step.

    Every step multiplies X by a polynomial P of A, and then A is ``P A P``. So X is multiplied
    once, at the end, by the product of all P. In fp32 the result is within 3e-4 of the exact one on
    the gradients of the default model (bf16: 2e-2 to 1e-1).
    """
    a, b, c = coefficients
    gram_kmm = x_kmn @ x_kmn.mT
    whole_kmm: Tensor | None = None
    for step in range(steps):
        polynomial_kmm = torch.baddbmm(gram_kmm, gram_kmm, gram_kmm, beta=b, alpha=c)
        polynomial_kmm.diagonal(dim1=1, dim2=2).add_(a)
        whole_kmm = polynomial_kmm if whole_kmm is None else polynomial_kmm @ whole_kmm
        if step + 1 < steps:
            gram_kmm = polynomial_kmm @ gram_kmm @ polynomial_kmm
    return x_kmn if whole_kmm is None else whole_kmm @ x_kmn
