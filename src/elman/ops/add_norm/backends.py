"""The implementations of residual add and RMSNorm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.add_norm import reference
from elman.ops.add_norm.custom_op import ADD_NORM, DTYPES, Call
from elman.ops.common.backend import Backend
from elman.ops.common.native import C_TYPES
from elman.ops.common.precision import cast

Run = Callable[[Tensor, Tensor | None, Tensor, torch.dtype], tuple[Tensor, Tensor]]
"""``run(stream_btd, branch_btd, gain_d, dtype) -> (sum_btd, normed_btd)``."""


def supported(
    backend: str, stream_btd: Tensor, branch_btd: Tensor | None, dtype: torch.dtype
) -> bool:
    """Return whether a backend computes on these dtypes; arguments as in op.py."""
    if backend == "cpu":
        return stream_btd.dtype in C_TYPES
    return backend != "cuda" or (
        stream_btd.dtype == torch.float32
        and dtype in DTYPES
        and (branch_btd is None or branch_btd.dtype in DTYPES)
    )


def _cpu(
    stream_btd: Tensor, branch_btd: Tensor | None, gain_d: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    wide = stream_btd.dtype
    if not supported("cpu", stream_btd, branch_btd, dtype):
        raise UserError(
            f"kernels.backend=cpu: norms have a float32 or float64 stream, not {wide}; "
            "use kernels.backend=reference"
        )
    branch_btd = None if branch_btd is None else cast(branch_btd, wide)
    call = Call(stream_btd, branch_btd, cast(gain_d, wide), wide, "cpu")
    sum_btd, normed_btd = ADD_NORM.run(call)
    return stream_btd if branch_btd is None else sum_btd, cast(normed_btd, dtype)


def _cuda(
    stream_btd: Tensor, branch_btd: Tensor | None, gain_d: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    if not supported("cuda", stream_btd, branch_btd, dtype):
        given = (stream_btd.dtype, dtype if branch_btd is None else branch_btd.dtype, dtype)
        raise UserError(
            "kernels.backend=cuda: norms have a float32 stream and bfloat16, float16 or "
            f"float32 beside it, not {', '.join(map(str, dict.fromkeys(given)))}; "
            "use kernels.backend=reference"
        )
    gain_d = cast(gain_d, stream_btd.dtype)
    sum_btd, normed_btd = ADD_NORM.run(Call(stream_btd, branch_btd, gain_d, dtype, "cuda"))
    return stream_btd if branch_btd is None else sum_btd, normed_btd


BACKENDS: dict[str, Backend[Run]] = {
    "reference": Backend(reference.add_rms_norm),
    "cpu": Backend(_cpu),
    "cuda": Backend(_cuda),
}
"""By the name that ``kernels.backend`` has. The caller names the dtype of the output."""
