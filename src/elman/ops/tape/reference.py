"""The tape recurrence in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, i channels of the state, n slots of the tape, m = n + 1 rows of the
memory, which is the tape with the state as its last row; p = i or 2 i products with the state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from elman.ops.common.scan import scan
from elman.ops.tape import steps


def dual_memory(
    input_bti: Tensor,
    recurrent_ii: Tensor,
    write_ii: Tensor | None,
    tape_bni: Tensor,
    state_bi: Tensor,
    write: str,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`elman.ops.tape.op.dual_memory`, any floating dtype, any device."""
    matrices = [recurrent_ii] if write_ii is None else [recurrent_ii, write_ii]
    # All steps share one transposed copy, which makes every product a plain GEMM.
    matrices_ip = torch.cat(matrices).t().contiguous()
    segment = partial(_segment, matrices_ip=matrices_ip, value=steps.STEPS[write])
    memory_bmi = torch.cat([tape_bni, state_bi.unsqueeze(1)], dim=1)
    sequences = [input_bti.transpose(0, 1)]
    if resets_bt is not None:
        sequences.append(resets_bt.T.unsqueeze(-1))
    h_tbi, memory_bmi = scan(segment, memory_bmi, sequences)
    # Copies: views would tie the tape and the state to each other's memory between calls.
    return h_tbi.transpose(0, 1), memory_bmi[:, :-1].clone(), memory_bmi[:, -1].clone()


def _segment(
    memory_bmi: Tensor,
    input_tbi: Tensor,
    resets_tb1: Tensor | None = None,
    *,
    matrices_ip: Tensor,
    value: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Run some steps of read, update and write.

    The state after a step is multiplied once: with W_r for this step's write, and with W_h for
    the next step. ``write=shared`` alone uses the last product with W_h of a segment.
    """
    tape_bni, h_bi = memory_bmi[:, :-1], memory_bmi[:, -1]
    width = h_bi.shape[-1]
    states = []
    if resets_tb1 is not None:  # or what is dropped is multiplied, and NaN * 0 is NaN
        h_bi = h_bi.masked_fill(resets_tb1[0], 0.0)
    recurrent_bi = h_bi @ matrices_ip[:, :width]
    for t, input_bi in enumerate(input_tbi.unbind(0)):
        if resets_tb1 is not None:
            h_bi = h_bi.masked_fill(resets_tb1[t], 0.0)
            recurrent_bi = recurrent_bi.masked_fill(resets_tb1[t], 0.0)
            tape_bni = tape_bni.masked_fill(resets_tb1[t].unsqueeze(-1), 0.0)
        h_bi = steps.read(tape_bni, h_bi, input_bi + recurrent_bi)
        product_bp = h_bi @ matrices_ip
        recurrent_bi = product_bp[:, :width]
        tape_bni = steps.write(tape_bni, h_bi, value(h_bi, product_bp))
        states.append(h_bi)
    return torch.stack(states), torch.cat([tape_bni, h_bi.unsqueeze(1)], dim=1)
