"""Residual add and RMSNorm in plain PyTorch, on any device and in any dtype.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.precision import wide_dtype

EPS = 1e-5
"""Added to the mean square, as in every published run."""


def rms_norm(x: Tensor, gain: Tensor, eps: float = EPS) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * gain over the last axis, in fp32 or wider.

    Args:
        x: Input; half-precision input is widened first.
        gain: Gain of the last axis.
        eps: Added to the mean square.
    """
    wide = x.to(wide_dtype(x.dtype))
    return functional.rms_norm(wide, gain.shape, gain.to(wide.dtype), eps)


def add_rms_norm(
    stream_btd: Tensor, branch_btd: Tensor | None, gain_d: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return stream + branch and its norm; see :func:`elman.ops.add_norm.op.add_rms_norm`."""
    if branch_btd is not None:
        stream_btd = stream_btd + branch_btd
    return stream_btd, rms_norm(stream_btd, gain_d).to(dtype)
