"""Residual add and RMSNorm as the models call them: dtypes, choice of implementation.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.add_norm import custom_op, reference
from elman.ops.common.door import FLOATING, check
from elman.ops.common.precision import cast


def supported(stream_btd: Tensor, branch_btd: Tensor | None, dtype: torch.dtype) -> bool:
    """Return whether the CUDA kernel computes on these dtypes; arguments as there."""
    branch = dtype if branch_btd is None else branch_btd.dtype
    return stream_btd.dtype == torch.float32 and {branch, dtype} <= custom_op.DTYPES


def add_rms_norm(
    stream_btd: Tensor,
    branch_btd: Tensor | None,
    gain_d: Tensor,
    dtype: torch.dtype,
    *,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Add a layer's output to the residual stream and normalise the sum for the next layer.

    s = stream + branch, normed = s / sqrt(mean(s^2) + 1e-5) * gain over the last axis
    (lm-and-training specification 1.2). Statistics are in the stream's dtype, whatever autocast
    says. Gradients reach every tensor argument; the kernel's are the same bits in every run.

    Args:
        stream_btd: Residual stream, fp32 or wider.
        branch_btd: What is added to it, of any floating dtype; None adds nothing.
        gain_d: Gain of the last axis.
        dtype: Dtype of the normed sum.
        backend: ``cuda`` for the kernel, or ``reference``.

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
    if backend == "reference" or not stream_btd.numel():
        return reference.add_rms_norm(stream_btd, branch_btd, gain_d, dtype)
    if not supported(stream_btd, branch_btd, dtype):
        given = (stream_btd.dtype, dtype if branch_btd is None else branch_btd.dtype, dtype)
        raise UserError(
            f"kernels.backend={backend}: norms have a float32 stream and bfloat16, float16 or "
            f"float32 beside it, not {', '.join(map(str, dict.fromkeys(given)))}; "
            "use kernels.backend=reference"
        )
    gain_d = cast(gain_d, stream_btd.dtype)
    sum_btd, normed_btd = custom_op.run(stream_btd, branch_btd, gain_d, dtype)
    return stream_btd if branch_btd is None else sum_btd, normed_btd
