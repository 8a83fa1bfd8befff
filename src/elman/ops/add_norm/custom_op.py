"""Residual add and RMSNorm as an operator: what autograd, autocast and torch.compile see.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from elman.ops.add_norm import cpu, cuda
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.operator import INCOMING, Operator

DTYPES = frozenset(CUDA_TYPES)
"""Of the branch and the normed sum on a GPU; everything else is fp32. A CPU has one dtype."""
KERNELS: dict[str, ModuleType] = {"cpu": cpu, "cuda": cuda}
"""By the name of the backend; each has ``forward`` and ``backward``."""


class Call(NamedTuple):
    """What the operator reads.

    Args:
        stream_btd: Residual stream, fp32, on a CPU also fp64.
        branch_btd: What is added to it, of a dtype in :data:`DTYPES`, on a CPU of the stream's
            dtype; or None.
        gain_d: Gain, in the stream's dtype.
        dtype: Dtype of the normed sum, in :data:`DTYPES`, on a CPU that of the stream.
        backend: A key of :data:`KERNELS`.
    """

    stream_btd: Tensor
    branch_btd: Tensor | None
    gain_d: Tensor
    dtype: torch.dtype
    backend: str


class Saved(NamedTuple):
    """What the backward pass reads; ``branch`` is the dtype of the branch, or None."""

    dsum_btd: Tensor | None
    dnormed_btd: Tensor
    sum_btd: Tensor
    rstd_bt: Tensor
    gain_d: Tensor
    branch: torch.dtype | None
    backend: str


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, of no size without a branch; its norm; and 1 / sqrt(mean square + eps)."""
    results = _room(call)
    kernels = KERNELS[call.backend]
    kernels.forward(call.stream_btd, call.branch_btd, call.gain_d, results)
    return results


def _room(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    stream_btd = call.stream_btd
    return (
        stream_btd.new_empty(0) if call.branch_btd is None else _like(stream_btd, stream_btd.dtype),
        _like(stream_btd, call.dtype),
        stream_btd.new_empty(stream_btd.shape[:-1]),
    )


def backward(saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of stream, branch and gain.

    That of the branch is of no size where it is the stream's to the bit: a branch in the stream's
    dtype, or None.
    """
    gradients = _gradient_room(saved)
    KERNELS[saved.backend].backward(*saved[:-2], gradients)
    return gradients


def _gradient_room(saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    own = saved.branch not in (None, saved.sum_btd.dtype)
    # Without a branch this is the dtype that the forward pass takes for it: one kernel is both.
    dtype = saved.branch or saved.dnormed_btd.dtype
    sum_btd, gain_d = saved.sum_btd, saved.gain_d
    return (
        _like(sum_btd, sum_btd.dtype),
        _like(sum_btd, dtype) if own else sum_btd.new_empty(0, dtype=dtype),
        _like(gain_d, gain_d.dtype),
    )


def _like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return room for a tensor's shape, in half of the time of making it from the shape."""
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _save(call: Call, results: tuple[Tensor, Tensor, Tensor]) -> Saved:
    stream_btd, branch_btd, gain_d, *_ = call
    branch = None if branch_btd is None else branch_btd.dtype
    sum_btd = stream_btd if branch_btd is None else results[0]
    return Saved(INCOMING, INCOMING, sum_btd, results[2], gain_d, branch, call.backend)


def _differentiate(
    saved: Saved, run: Callable[[Saved], tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of stream, branch and gain. Those of the sum alone take no kernel."""
    branch, dsum_btd = saved.branch, saved.dsum_btd
    dnormed_btd: Tensor | None = saved.dnormed_btd
    if branch is None:
        dsum_btd = None  # the gradient of an output of no size
        saved = saved._replace(dsum_btd=None)
    if dnormed_btd is None:
        return dsum_btd, None if branch is None or dsum_btd is None else dsum_btd.to(branch), None
    dstream_btd, dbranch_btd, dgain_d = run(saved)
    if branch is None:
        return dstream_btd, None, dgain_d
    return dstream_btd, dstream_btd if branch == dstream_btd.dtype else dbranch_btd, dgain_d


ADD_NORM = Operator(
    "add_rms_norm",
    Call,
    Saved,
    forward=forward,
    fake=_room,
    save=_save,
    backward=backward,
    fake_backward=_gradient_room,
    incoming=("dsum_btd", "dnormed_btd"),
    gradients=("stream_btd", "branch_btd", "gain_d"),
    differentiate=_differentiate,
)
"""The sum, of no size without a branch; its norm; and 1 / sqrt(mean square + eps) [B, T]."""
