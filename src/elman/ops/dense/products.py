"""The large products after a backward pass: the gradients of matrices and parameters.

Every sum over batch and time is in the state's dtype (fp32 or wider), and so is its result, however
narrow what it reads.

Shape legend: b batch, t time, i channels of the state, p blocks * i rows of the recurrent matrix,
r rank, j channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elman.ops.common.precision import no_autocast
from elman.ops.common.products import outer, outer_before, shifted
from elman.ops.dense.heads import head_count
from elman.ops.dense.passes import Gradients, Saved, Tensors
from elman.ops.dense.recurrences import compiled_cell


def gradients(
    saved: Saved, dinputs: list[Tensor], dscale_bi: Tensor, dfirst_sbi: Tensor
) -> Gradients:
    """Return all gradients of a call, with those of matrices and parameters from the inputs'.

    Args:
        saved: What was saved of the call. Matrices have the dtype of the inputs.
        dinputs: Gradients of the inputs; that of the first is that of the pre-activations.
        dscale_bi: Gradient of the step's own number, summed over time; not read without one.
        dfirst_sbi: Gradient of the first state.
    """
    cell, y_bti, resets_bt = compiled_cell(saved.step), saved.y_bti, saved.resets_bt
    wide = saved.first_sbi.dtype
    with no_autocast(y_bti):  # where a backward pass runs inside of one
        h_bi = saved.first_sbi[0].to(y_bti.dtype)
        dparameters = [dscale_bi.sum().reshape(saved.parameters[0].shape)] if cell.scale else []
        if cell.extra:
            gated_bti = shifted(y_bti, h_bi, resets_bt) * saved.memo_btmi[:, :, 1]
            dparameters.append(outer(dinputs[1], gated_bti, wide))
        drecurrent = _of_heads(dinputs[0], saved.recurrent, y_bti, h_bi, wide, resets_bt)
    return Gradients(dinputs, drecurrent, dparameters, dfirst_sbi)


def _of_heads(
    dpre_btp: Tensor,
    recurrent: Tensors,
    y_bti: Tensor,
    h_bi: Tensor,
    wide: torch.dtype,
    resets_bt: Tensor | None,
) -> list[Tensor]:
    """Return the gradients of R, head by head, or of its factors."""
    if recurrent[0].ndim == 2:
        return _of_matrices(dpre_btp, recurrent, y_bti, h_bi, wide, resets_bt)
    heads = head_count(recurrent)
    drecurrent = [
        _of_matrices(dpre, [block], y_btj, h_bj, wide, resets_bt)[0]
        for dpre, block, y_btj, h_bj in zip(
            dpre_btp.chunk(heads, dim=-1),
            recurrent[0],
            y_bti.chunk(heads, dim=-1),
            h_bi.chunk(heads, dim=-1),
            strict=True,
        )
    ]
    return [torch.stack(drecurrent)]


def _of_matrices(
    dpre_btp: Tensor,
    recurrent: Tensors,
    y_bti: Tensor,
    h_bi: Tensor,
    wide: torch.dtype,
    resets_bt: Tensor | None,
) -> list[Tensor]:
    """Return the gradients of R, or of its factors: products over batch and time together."""
    if len(recurrent) == 1 and y_bti.is_cpu and y_bti.dtype == wide and resets_bt is None:
        drecurrent_pi = dpre_btp[:, 0].T @ h_bi
        for dpre_tp, y_ti in zip(dpre_btp, y_bti, strict=True):  # in place: no copy of the states
            drecurrent_pi.addmm_(dpre_tp[1:].T, y_ti[:-1])
        return [drecurrent_pi]
    if len(recurrent) == 1:
        return [outer_before(dpre_btp, y_bti, h_bi, wide, resets_bt)]
    before_bti = shifted(y_bti, h_bi, resets_bt)
    outer_pr, inner_ri = recurrent
    dlow_btr = dpre_btp @ outer_pr
    low_btr = before_bti @ inner_ri.T
    return [outer(dpre_btp, low_btr, wide), outer(dlow_btr, before_bti, wide)]
