"""RMSNorm of each head's read and the gate behind it, in one kernel each way on a GPU.

PyTorch norms rows of 16 numbers in fp32, a block of threads to a row, with a copy on either side,
and computes the gate in kernels of its own. In E88 with 32 heads of 16 that was half of a training
step.

Shape legend: h heads, v width of a head, i = h v.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.add_norm.reference import EPS, rms_norm
from elman.ops.common.checks import FLOATING, check
from elman.ops.common.native import CUDA_TYPES
from elman.ops.common.precision import cast
from elman.ops.common.transforms import transformed
from elman.ops.head_norm import cuda
from elman.ops.head_norm.custom_op import HEAD_NORM, Call

_ACTS: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "sigmoid": torch.sigmoid}


def head_norm(
    y: Tensor,
    gain_v: Tensor,
    gate: Tensor | None = None,
    act: str = "none",
    *,
    dtype: torch.dtype,
    backend: str,
    eps: float = EPS,
) -> Tensor:
    """Return y / sqrt(mean(y^2) + eps) gain act(gate), the mean over the last axis.

    Statistics are in fp32 or wider (matrix-state specification 12.2, step 8). The gradient of the
    gain is a sum in one order.

    Args:
        y: Reads [..., h, v], or [..., v] without a gate.
        gain_v: Gain, the same for all rows.
        gate: The gate's argument [..., i]; it may be part of a larger tensor, and is read in place.
        act: ``silu`` or ``sigmoid`` of the gate; ``none`` without one.
        dtype: Dtype of the output.
        backend: Name of the layer's backend; ``cuda`` computes rows of up to
            :data:`~elman.ops.head_norm.cuda.MOST_WIDTH` numbers in a kernel.
        eps: Added to the mean square.

    Raises:
        ValueError: gain or gate have another shape or device than the reads.
    """
    check("gain of head_norm", gain_v, y.shape[-1:], y.device, FLOATING)
    if gate is not None:
        channels = y.shape[-2] * y.shape[-1]
        check("gate of head_norm", gate, (*y.shape[:-2], channels), y.device, FLOATING)
    if backend != "cuda" or transformed() or not _has_kernel(y, gate, dtype):
        return cast(_plain(y, gain_v, gate, act, eps), dtype)
    call = Call(y, cast(gain_v, torch.float32), gate, act, eps, dtype)
    out: Tensor = HEAD_NORM.run(call)[0]
    return out


def _has_kernel(y: Tensor, gate: Tensor | None, dtype: torch.dtype) -> bool:
    dtypes = {y.dtype, dtype, y.dtype if gate is None else gate.dtype}
    return dtypes <= CUDA_TYPES.keys() and y.shape[-1] <= cuda.MOST_WIDTH and y.numel() > 0


def _plain(y: Tensor, gain_v: Tensor, gate: Tensor | None, act: str, eps: float) -> Tensor:
    """Return the same by PyTorch's operators, in fp32 or wider."""
    normed = rms_norm(y, gain_v, eps)
    if gate is None:
        return normed
    return normed * torch.unflatten(_ACTS[act](gate), -1, y.shape[-2:])
