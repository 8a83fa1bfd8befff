"""Residual add and RMSNorm as operators: what autograd, autocast and torch.compile see.

Where nobody looks at operators, :class:`AddNorm` calls the kernel without one.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elman.ops.add_norm import cuda
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.operators import apply, backward_is_plain, operators_are_seen
from elman.ops.common.transforms import OperatorFunction, operator, register_gradient

DTYPES = frozenset(CUDA_TYPES)
"""Of the branch and the normed sum; everything else is fp32."""


@operator("add_rms_norm")
def add_rms_norm(
    stream_btd: Tensor, branch_btd: Tensor | None, gain_d: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the kernel.

    Args:
        stream_btd: Residual stream, fp32.
        branch_btd: What is added to it, of a dtype in :data:`DTYPES`, or None.
        gain_d: Gain, fp32.
        dtype: Dtype of the normed sum, in :data:`DTYPES`.

    Returns:
        The sum, of no size without a branch; its norm; and 1 / sqrt(mean square + eps) [B, T].
    """
    return _forward(stream_btd, branch_btd, gain_d, dtype)


def _forward(
    stream_btd: Tensor, branch_btd: Tensor | None, gain_d: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = _outputs(stream_btd, branch_btd, dtype)
    cuda.forward(stream_btd, branch_btd, gain_d, outputs)
    return outputs


def _outputs(
    stream_btd: Tensor, branch_btd: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        stream_btd.new_empty(0) if branch_btd is None else _like(stream_btd, stream_btd.dtype),
        _like(stream_btd, dtype),
        stream_btd.new_empty(stream_btd.shape[:-1]),
    )


@add_rms_norm.register_fake
def _(
    stream_btd: Tensor, branch_btd: Tensor | None, gain_d: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(stream_btd, branch_btd, dtype)


@operator("add_rms_norm_backward")
def add_rms_norm_backward(
    dsum_btd: Tensor | None,
    dnormed_btd: Tensor,
    sum_btd: Tensor,
    rstd_bt: Tensor,
    gain_d: Tensor,
    branch: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of stream, branch and gain.

    That of the branch is of no size where it is the stream's to the bit: a branch in fp32, or None.
    """
    return _backward(dsum_btd, dnormed_btd, sum_btd, rstd_bt, gain_d, branch)


def _backward(
    dsum_btd: Tensor | None,
    dnormed_btd: Tensor,
    sum_btd: Tensor,
    rstd_bt: Tensor,
    gain_d: Tensor,
    branch: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = _gradients(sum_btd, gain_d, branch, dnormed_btd.dtype)
    cuda.backward(dsum_btd, dnormed_btd, sum_btd, rstd_bt, gain_d, gradients)
    return gradients


def _gradients(
    sum_btd: Tensor, gain_d: Tensor, branch: torch.dtype | None, out: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    own = branch not in (None, torch.float32)
    # Without a branch this is the dtype that the forward pass takes for it: one kernel is both.
    dtype = branch or out
    return (
        _like(sum_btd, sum_btd.dtype),
        _like(sum_btd, dtype) if own else sum_btd.new_empty(0, dtype=dtype),
        _like(gain_d, gain_d.dtype),
    )


def _like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return room for a tensor's shape, in half of the time of making it from the shape."""
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


@add_rms_norm_backward.register_fake
def _(
    dsum_btd: Tensor | None,
    dnormed_btd: Tensor,
    sum_btd: Tensor,
    rstd_bt: Tensor,
    gain_d: Tensor,
    branch: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(sum_btd, gain_d, branch, dnormed_btd.dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    stream_btd, branch_btd, gain_d, _ = inputs
    ctx.branch = None if branch_btd is None else branch_btd.dtype
    sum_btd = stream_btd if branch_btd is None else output[0]
    ctx.save_for_backward(sum_btd, output[2], gain_d)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, dsum_btd: Tensor | None, dnormed_btd: Tensor | None, *, plain: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    """Return the gradients of the arguments.

    Args:
        ctx: As :func:`_setup` left it.
        dsum_btd: Gradient of the sum.
        dnormed_btd: Gradient of its norm.
        plain: Whether a plain call may compute them, where no operator is seen.
    """
    branch: torch.dtype | None = ctx.branch
    if branch is None:
        dsum_btd = None  # the gradient of an output of no size
    if dnormed_btd is None:
        dbranch_btd = None if branch is None or dsum_btd is None else dsum_btd.to(branch)
        return dsum_btd, dbranch_btd, None, None
    given = (dsum_btd, dnormed_btd, *ctx.saved_tensors, branch)
    plain = plain and backward_is_plain(given[1:-1])
    run = _backward if plain else add_rms_norm_backward
    dstream_btd, dbranch_btd, dgain_d = run(*given)
    if branch == torch.float32:
        dbranch_btd = dstream_btd
    return dstream_btd, None if branch is None else dbranch_btd, dgain_d, None


def _differentiate_operator(
    ctx: Any, dsum_btd: Tensor | None, dnormed_btd: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    return _differentiate(ctx, dsum_btd, dnormed_btd, plain=False)


register_gradient("add_rms_norm", _differentiate_operator, _setup)


class AddNorm(OperatorFunction):
    """The operator :func:`add_rms_norm` where nobody looks; its third output stays inside."""

    @staticmethod
    def forward(
        ctx: Any,
        stream_btd: Tensor,
        branch_btd: Tensor | None,
        gain_d: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Run the kernel."""
        inputs = (stream_btd, branch_btd, gain_d, dtype)
        outputs = _forward(*inputs)
        _setup(ctx, inputs, outputs)
        return outputs[:2]

    @staticmethod
    def backward(
        ctx: Any, dsum_btd: Tensor | None, dnormed_btd: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Run the kernels of the backward pass."""
        return _differentiate(ctx, dsum_btd, dnormed_btd, plain=True)


def run(
    stream_btd: Tensor, branch_btd: Tensor | None, gain_d: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the first two outputs of :func:`add_rms_norm`, by an operator only if it is seen."""
    if operators_are_seen((stream_btd, branch_btd, gain_d)):
        sum_btd, normed_btd, _ = add_rms_norm(stream_btd, branch_btd, gain_d, dtype)
        return sum_btd, normed_btd
    outputs: tuple[Tensor, Tensor] = apply(AddNorm, stream_btd, branch_btd, gain_d, dtype)
    return outputs
