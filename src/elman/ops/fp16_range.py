"""Runs a part of a model in fp16 inside one in bf16, with gradients that fit fp16's range.

Gradients of a mean loss are often below 6e-8, the smallest number of fp16. So they are multiplied
by a power of two on their way in, and divided by it on their way out. The power comes from the
gradients at hand, on the device, so that nothing waits and a CUDA graph may replay it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elman.ops.common.transforms import KernelFunction, transformed

# The largest incoming gradient gets the size 2^-3: sums of 500,000 of them stay below fp16's
# largest number, 65504.
_EXPONENT = -3


class _Scale:
    """The factor of one call's gradients, fp32; known once its backward pass begins."""

    factor: Tensor


def in_fp16(
    run: Callable[[Sequence[Tensor]], Sequence[Tensor]], given: Sequence[Tensor], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Call a function with tensors in fp16; return its results in another dtype.

    Args:
        run: Computes fp16 results from fp16 tensors. Gradients flow through it.
        given: Its tensors, in any floating dtype. Their gradients have their dtype.
        dtype: Dtype of the results.
    """
    if transformed():  # plain casts, whose derivatives PyTorch knows
        return tuple(one.to(dtype) for one in run([one.half() for one in given]))
    scale = _Scale()
    narrow = _Into.apply(scale, *given)  # type: ignore[no-untyped-call]
    results: tuple[Tensor, ...] = _OutOf.apply(  # type: ignore[no-untyped-call]
        scale, dtype, *run(narrow)
    )
    return results


class _Into(KernelFunction):
    @staticmethod
    def forward(ctx: Any, scale: _Scale, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.scale, ctx.dtypes = scale, [one.dtype for one in given]
        ctx.set_materialize_grads(False)
        return tuple(one.to(torch.float16, copy=True) for one in given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *(
            None if one is None else (one.float() / ctx.scale.factor).to(dtype)
            for one, dtype in zip(gradients, ctx.dtypes, strict=True)
        )


class _OutOf(KernelFunction):
    @staticmethod
    def forward(
        ctx: Any, scale: _Scale, dtype: torch.dtype, *results: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return tuple(one.to(dtype, copy=True) for one in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [one.abs().amax().float() for one in gradients if one is not None]
        ctx.scale.factor = _power(torch.stack(there).amax())
        return (
            None,
            None,
            *(
                None if one is None else (one.float() * ctx.scale.factor).half()
                for one in gradients
            ),
        )


def _power(largest: Tensor) -> Tensor:
    """Return the power of two that gives a number the size 2^_EXPONENT; 1 where there is none."""
    usable = torch.isfinite(largest) & (largest > 0)
    exponent = _EXPONENT - torch.where(usable, largest, 1.0).log2().floor()
    return torch.where(usable, torch.ldexp(torch.ones_like(largest), exponent), 1.0)
