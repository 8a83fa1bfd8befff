"""Residual add and RMSNorm as the models call them: checks, then the chosen backend.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ops.add_norm.backends import BACKENDS
from elman.ops.common.checks import FLOATING, check
from elman.ops.common.transforms import transformed


def add_rms_norm(
    stream_btd: Tensor,
    branch_btd: Tensor | None,
    gain_d: Tensor,
    dtype: torch.dtype,
    *,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Add a layer's output to the residual stream and normalize the sum for the next layer.

    s = stream + branch, normed = s / sqrt(mean(s^2) + 1e-5) * gain over the last axis
    (lm-and-training specification 1.2). Statistics are in the stream's dtype, whatever autocast
    says. Gradients reach every tensor argument. A kernel's are the same bits in every run, those of
    a CPU's for any number of threads.

    Args:
        stream_btd: Residual stream, fp32 or wider.
        branch_btd: What is added to it, of any floating dtype; None adds nothing.
        gain_d: Gain of the last axis.
        dtype: Dtype of the normed sum.
        backend: ``cpu`` or ``cuda`` for a kernel, or ``reference``.

    Returns:
        The sum in the stream's dtype (the stream itself without a branch), and its norm.

    Raises:
        ValueError: branch or gain have another shape or device than the stream.
        UserError: the kernel does not compute on one of the dtypes, or cannot be built or run.
    """
    shape, device = stream_btd.shape, stream_btd.device
    check("gain of add_rms_norm", gain_d, shape[-1:], device, FLOATING)
    if branch_btd is not None:
        check("branch of add_rms_norm", branch_btd, shape, device, FLOATING)
    chosen = BACKENDS["reference" if transformed() or not stream_btd.numel() else backend]
    return chosen.run(stream_btd, branch_btd, gain_d, dtype)
