"""The gated delta rule on the package flash-qla: FlashQLA's kernels for Hopper and newer GPUs.

Shape legend: b batch, t time, h heads, k key width of a head, v value width of a head.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from elman.base.errors import UserError
from elman.base.output import note
from elman.kernels.flash_qla import BF16_ALONE, NAME, PACKAGE, refusal
from elman.ops.common.packages import package_kernels
from elman.ops.common.precision import wide_dtype

_NARROW = (torch.bfloat16, torch.float16)


def gated_delta_rule(
    q_bthk: Tensor,
    k_bthk: Tensor,
    v_bthv: Tensor,
    decay_bth: Tensor,
    write_bth: Tensor,
    a_log_h: Tensor,
    dt_bias_h: Tensor,
    write_scale: float,
    state_bhvk: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence; see :func:`elman.ops.gated_delta.op.gated_delta_rule`.

    The package's kernels take unit queries and keys and ready gates. The norms are
    flash-linear-attention's kernels, the gates PyTorch's operations on [b, t, h].

    Raises:
        UserError: the package does not compute these sizes, this scale or this dtype.
    """
    if problem := refusal(q_bthk.shape[3], v_bthv.shape[3], negative=write_scale != 1.0):
        raise UserError(f"kernels.backend={NAME}: {problem}")
    _require_narrow(q_bthk.dtype)
    wide = wide_dtype(q_bthk.dtype)
    step_bth = functional.softplus(decay_bth.to(wide) + dt_bias_h.to(wide))
    rule, unit = _rule(), _norm().l2norm
    y_bthv, last_bhkv = rule.chunk_gated_delta_rule(
        q=unit(q_bthk),
        k=unit(k_bthk),
        v=v_bthv,
        g=step_bth * -a_log_h.to(wide).exp(),
        beta=write_bth.to(wide).sigmoid(),
        scale=q_bthk.shape[3] ** -0.5,
        # The package's own layout of a state: its kernels for the other one were not compared.
        initial_state=None if state_bhvk is None else state_bhvk.mT.contiguous(),
        output_final_state=True,
        # Otherwise a single row is cut into pieces that start from estimated states, and sizes
        # are read back from the GPU, which no CUDA graph can hold.
        auto_cp=False,
    )
    return y_bthv, last_bhkv.mT


def _require_narrow(dtype: torch.dtype) -> None:
    if dtype not in _NARROW:
        raise UserError(f"kernels.backend={NAME}: {BF16_ALONE}")


@cache
def _rule() -> Any:
    note(
        f"kernels.backend={NAME}: tilelang compiles FlashQLA's kernels at their first use on a "
        "machine, which takes about two minutes; later runs find them on disk"
    )
    return package_kernels(PACKAGE, "")


@cache
def _norm() -> Any:
    return package_kernels("flash-linear-attention", "modules.norm.l2norm")
