"""Biases and gains of channels, whose gradients a kernel sums on a GPU.

PyTorch sums a bias's gradient by a reduction that reads a tensor of [16384, 1280] at a third of a
GPU's bandwidth, and rounds the sum to the tensor's dtype.

Shape legend: b batch, t time, i input channels, o output channels.
"""

from __future__ import annotations

from collections.abc import Callable
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


def bias_of_parts(
    x_bti: Tensor,
    weight_oi: Tensor,
    bias_o: Tensor,
    run: Callable[[Tensor], Tensor],
    *,
    backend: str,
) -> Tensor:
    """Return what several linear maps make side by side, each with a piece of one bias.

    A kernel sums the gradient of the whole bias at once, as :func:`biased_linear` does.

    Args:
        x_bti: Any of the maps' inputs.
        weight_oi: All their matrices.
        bias_o: All their biases.
        run: Returns the output [..., o], given the biases.
        backend: Name of the layer's backend; ``cuda`` sums in a kernel.
    """
    if not _in_a_kernel(x_bti, weight_oi, bias_o, backend):
        return run(bias_o)
    y_bto: Tensor = apply(_HasBias, run(bias_o.detach()), bias_o)
    return y_bto


def gained(x_bto: Tensor, gain_o: Tensor, *, backend: str) -> Tensor:
    """Return x times a gain of each channel, whose gradient a kernel sums.

    Args:
        x_bto: What is multiplied, of the gain's dtype.
        gain_o: The gain.
        backend: Name of the layer's backend; ``cuda`` sums in a kernel.
    """
    if not _in_a_kernel(x_bto, gain_o, gain_o, backend):
        return x_bto * gain_o
    over_rows: Tensor = apply(_OverRows, gain_o, x_bto.shape)
    return x_bto * over_rows


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


class _HasBias(KernelFunction):
    """An output as it is, whose gradient is also that of a bias that it has already."""

    @staticmethod
    def forward(ctx: Any, y_bto: Tensor, bias_o: Tensor) -> Tensor:
        ctx.dtype = bias_o.dtype
        return y_bto.view_as(y_bto)

    @staticmethod
    def backward(ctx: Any, dy_bto: Tensor) -> tuple[Tensor, Tensor]:
        return dy_bto, cuda.column_sum(dy_bto.flatten(0, -2).contiguous()).to(ctx.dtype)


class _OverRows(KernelFunction):
    """A number of each channel, the same in all rows."""

    @staticmethod
    def forward(ctx: Any, gain_o: Tensor, shape: torch.Size) -> Tensor:
        ctx.dtype = gain_o.dtype
        return gain_o.expand(shape)

    @staticmethod
    def backward(ctx: Any, dgain_bto: Tensor) -> tuple[Tensor, None]:
        return cuda.column_sum(dgain_bto.flatten(0, -2).contiguous()).to(ctx.dtype), None
