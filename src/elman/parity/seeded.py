"""Gradients from given gradients of the results, without the import of sympy.

``torch.autograd.grad`` imports ``torch.fx.experimental.symbolic_shapes`` where it gets gradients of
results, which takes a third of a second. It does not for a scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Seed(torch.autograd.Function):
    """A zero whose gradient with respect to each result is a given tensor, as it is in memory."""

    @staticmethod
    def forward(ctx: Any, incoming: Sequence[Tensor], *results: Tensor) -> Tensor:
        ctx.incoming = incoming
        return results[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        return (None, *ctx.incoming)


def gradients(
    results: Sequence[Tensor], inputs: Sequence[Tensor], incoming: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradient of each input; zeros where it reaches no result.

    Args:
        results: What was computed; each needs a gradient.
        inputs: What it was computed from.
        incoming: A gradient of each result, of its shape and dtype.
    """
    seed = _Seed.apply(tuple(incoming), *results)  # type: ignore[no-untyped-call]
    return torch.autograd.grad(seed, list(inputs), materialize_grads=True)
