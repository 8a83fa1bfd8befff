"""Inverses of many small lower triangular matrices at once, with a gradient.

Block recursion, since the series I - A + A^2 - ... has terms that grow like binomials and cancel
where keys repeat, as they do in text.

Shape legend: n matrices, l (and m) row (and column), d diagonal blocks, s rows of a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elman.ops.common.transforms import transformed

_BASE = 8


def unit_lower_inverse(lower_lm: Tensor) -> Tensor:
    """Return (I + A)^-1, A the strictly lower triangle of each matrix [..., l, l].

    Whatever stands on and above the diagonal is not read and gets no gradient.
    """
    if transformed():
        unit_lm = torch.eye(lower_lm.shape[-1], dtype=lower_lm.dtype, device=lower_lm.device)
        solved: Tensor = torch.linalg.solve_triangular(
            lower_lm.tril(-1) + unit_lm, unit_lm, upper=False, unitriangular=True
        )
        return solved
    inverse: Tensor = _UnitLowerInverse.apply(lower_lm)  # type: ignore[no-untyped-call]
    return inverse


class _UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lower_lm: Tensor) -> Tensor:
        length = lower_lm.shape[-1]
        size = _BASE
        while size < length:
            size *= 2
        lower_nlm = lower_lm.reshape(-1, length, length)
        inverse_nlm = lower_nlm.new_zeros(lower_nlm.shape[0], size, size)
        inverse_nlm[:, :length, :length] = lower_nlm.tril(-1)
        _invert_diagonal(inverse_nlm)
        block = _BASE
        while block < size:
            _merge(inverse_nlm, block)
            block *= 2
        inverse_lm = inverse_nlm[:, :length, :length].reshape(lower_lm.shape)
        ctx.save_for_backward(inverse_lm)
        return inverse_lm

    @staticmethod
    def backward(ctx: Any, gradient_lm: Tensor) -> Tensor:
        (inverse_lm,) = ctx.saved_tensors
        found_lm: Tensor = inverse_lm.mT @ gradient_lm @ inverse_lm.mT
        return found_lm.tril_(-1).neg_()


def _invert_diagonal(matrix_nlm: Tensor) -> None:
    """Replace each _BASE-wide diagonal block A by (I + A)^-1, row by row."""
    count, size, _ = matrix_nlm.shape
    blocks = size // _BASE
    split = matrix_nlm.view(count, blocks, _BASE, blocks, _BASE)
    block_nssd = split.diagonal(dim1=1, dim2=3).neg_()
    for row in range(1, _BASE):
        known = block_nssd[:, row, :row].clone()
        sums = (known.unsqueeze(2) * block_nssd[:, :row, :row]).sum(1)
        block_nssd[:, row, :row] += sums
    block_nssd.diagonal(dim1=1, dim2=2).fill_(1)


def _merge(matrix_nlm: Tensor, block: int) -> None:
    """Make inverses of neighboring diagonal blocks one of twice the size.

    [[P, 0], [A, Q]]^-1 has -Q^-1 A P^-1 in its lower left; P^-1 and Q^-1 stand there already.
    """
    count, size, _ = matrix_nlm.shape
    pairs = size // (2 * block)
    split = matrix_nlm.view(count, pairs, 2, block, pairs, 2, block)
    pair_ndisjs = split.diagonal(dim1=1, dim2=4).movedim(-1, 1)
    upper, lower = pair_ndisjs[:, :, 0, :, 0], pair_ndisjs[:, :, 1, :, 1]
    corner = pair_ndisjs[:, :, 1, :, 0]
    corner.copy_((lower @ corner @ upper).neg_())
