"""The dense recurrences in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, i channels of the state, s parts of the state, p rows of the
recurrent matrix, c channels of any kind.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from elman.ops.common.scan import scan
from elman.ops.dense.heads import block_by_block, by_head, row_count
from elman.ops.dense.steps import STEPS, Advance, State, Tensors


def dense_recurrence(
    step: str,
    inputs: Tensors,
    recurrent: Tensors,
    state: Tensors,
    parameters: Tensors,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Compute :func:`elman.ops.dense.op.dense_recurrence`, any floating dtype, any device."""
    chosen = STEPS[step]
    assert inputs[0].shape[-1] == row_count(recurrent)
    first_tbp, *others = (sequence.transpose(0, 1) for sequence in inputs)
    activated = [act(other) for act, other in zip(chosen.activations, others, strict=True)]
    segment = partial(
        _segment,
        advance=chosen.advance,
        recurrent=[transposed(matrix) for matrix in reversed(recurrent)],
        parameters=[transposed(one) if one.ndim == 2 else one for one in parameters],
        resets=resets_bt is not None,
    )
    sequences = [first_tbp, *activated]
    if resets_bt is not None:
        sequences.append(resets_bt.T.unsqueeze(-1))
    h_tbi, final_sbi = scan(segment, torch.stack(tuple(state)), sequences)
    return h_tbi.transpose(0, 1), final_sbi.unbind(0)


def transposed(matrix: Tensor) -> Tensor:
    """Return a copy that all steps share: every product is then a plain GEMM."""
    return matrix.mT.contiguous()


def _segment(
    state_sbi: Tensor,
    *inputs_t: Tensor,
    advance: Advance,
    recurrent: Tensors,
    parameters: Tensors,
    resets: bool,
) -> tuple[Tensor, Tensor]:
    """Run one step after the other; with resets, they are the last of the inputs."""
    *inner, outer = recurrent
    state = state_sbi.unbind(0)
    outputs = []
    for input_bp, *others in zip(*(sequence.unbind(0) for sequence in inputs_t), strict=True):
        if resets:
            reset_b1 = others.pop()
            state = tuple(part.masked_fill(reset_b1, 0.0) for part in state)
        read = state[0]
        for factor in inner:
            read = read @ factor
        state = advance(state, added(input_bp, read, outer), others, parameters)
        outputs.append(state[0])
    return torch.stack(outputs), torch.stack(state)


def added(input_bp: Tensor, read_bc: Tensor, matrix: Tensor) -> Tensor:
    """Return input + read R^T, a fresh tensor, with the blocks of all heads side by side."""
    if matrix.ndim == 2:
        return torch.addmm(input_bp, read_bc, matrix)
    heads = matrix.shape[0]
    sum_ebq = torch.baddbmm(by_head(input_bp, heads), by_head(read_bc, heads), matrix)
    return block_by_block(sum_ebq.transpose(0, 1).flatten(1), heads, read_bc.shape[1])
