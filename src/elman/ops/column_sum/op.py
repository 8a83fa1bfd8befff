"""A linear map with a bias, whose gradient a kernel sums on a GPU.

PyTorch sums a bias's gradient by a reduction that reads a tensor of [16384, 1280] at a third of a
GPU's bandwidth, and rounds the sum to the tensor's dtype.

Shape legend: b batch, t time, i input channels, o output channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.column_sum import cuda
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.padding import fill_of, is_padded
from elman.ops.common.precision import cast, compute_dtype
from elman.ops.common.transforms import KernelFunction, apply, watched
from elman.ops.linear import linear, narrow, padded_factors


def biased_linear(
    x_bti: Tensor, weight_oi: Tensor, bias_o: Tensor | None, *, backend: str
) -> Tensor:
    """Return :func:`elman.ops.linear.linear` of the same tensors, to the bit.

    The gradient of the bias is a sum in fp32, and keeps that precision where the bias has it.

    Args:
        x_bti: Input.
        weight_oi: W.
        bias_o: b, or None.
        backend: Name of the layer's backend; ``cuda`` sums in a kernel.
    """
    if bias_o is None or not _in_a_kernel(x_bti, weight_oi, bias_o, backend):
        return linear(x_bti, weight_oi, bias_o)
    dtype, outputs = compute_dtype(x_bti, weight_oi.dtype), len(weight_oi)
    if padded := is_padded(x_bti, weight_oi):
        x_bti, weight_oi = padded_factors(x_bti, weight_oi)
        bias_o = functional.pad(bias_o, (0, fill_of(outputs)))
    else:
        weight_oi = narrow(weight_oi)
    y_bto: Tensor = apply(_Biased, cast(x_bti, dtype), cast(weight_oi, dtype), bias_o)
    return y_bto[..., :outputs] if padded else y_bto


def _in_a_kernel(x_bti: Tensor, weight_oi: Tensor, bias_o: Tensor, backend: str) -> bool:
    """Return whether a kernel sums; compilers and transforms see PyTorch's operators."""
    return (
        backend == "cuda"
        and torch.is_grad_enabled()
        and bias_o.requires_grad
        and not watched((x_bti, weight_oi, bias_o))
        and compute_dtype(x_bti, weight_oi.dtype) in CUDA_TYPES
        and x_bti.numel() > 0
    )


class _Biased(KernelFunction):
    @staticmethod
    def forward(ctx: Any, x_bti: Tensor, weight_oi: Tensor, bias_o: Tensor) -> Tensor:
        ctx.save_for_backward(x_bti, weight_oi)
        ctx.dtype = bias_o.dtype
        return functional.linear(x_bti, weight_oi, cast(bias_o, x_bti.dtype))

    @staticmethod
    def backward(ctx: Any, dy_bto: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        x_bti, weight_oi = ctx.saved_tensors
        dx_bti = dweight_oi = None
        dy_no = dy_bto.flatten(0, -2).contiguous()
        if ctx.needs_input_grad[0]:
            dx_bti = (dy_no @ weight_oi).view_as(x_bti)
        if ctx.needs_input_grad[1]:
            dweight_oi = dy_no.T @ x_bti.flatten(0, -2)
        return dx_bti, dweight_oi, cuda.column_sum(dy_no).to(ctx.dtype)
