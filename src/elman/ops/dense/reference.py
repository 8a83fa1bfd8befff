"""The dense recurrences in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, i channels of the state.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from elman.ops.scan import scan


def elman(
    input_bti: Tensor, weight_ii: Tensor, state_bi: Tensor, linear: bool
) -> tuple[Tensor, Tensor]:
    """Compute :func:`elman.ops.dense.op.elman`, any floating dtype, any device."""
    # The weight is shared by all steps: one transposed copy makes every product a plain GEMM.
    segment = partial(_segment, weight_t=weight_ii.t().contiguous(), linear=linear)
    h_tbi, state_bi = scan(segment, state_bi, [input_bti.transpose(0, 1)])
    return h_tbi.transpose(0, 1), state_bi


def _segment(
    h_bi: Tensor, input_tbi: Tensor, *, weight_t: Tensor, linear: bool
) -> tuple[Tensor, Tensor]:
    """Run some steps of h' = phi(input + W h)."""
    states = []
    for input_bi in input_tbi.unbind(0):
        h_bi = torch.addmm(input_bi, h_bi, weight_t)
        if not linear:
            h_bi = h_bi.tanh_()
        states.append(h_bi)
    return torch.stack(states), h_bi
