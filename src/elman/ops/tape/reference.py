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
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`elman.ops.tape.op.dual_memory`, any floating dtype, any device."""
    matrices = [recurrent_ii] if write_ii is None else [recurrent_ii, write_ii]
    # All steps share one transposed copy, which makes every product a plain GEMM.
    matrices_ip = torch.cat(matrices).t().contiguous()
    segment = partial(_segment, matrices_ip=matrices_ip, value=steps.STEPS[write])
    memory_bmi = torch.cat([tape_bni, state_bi.unsqueeze(1)], dim=1)
    h_tbi, memory_bmi = scan(segment, memory_bmi, [input_bti.transpose(0, 1)])
    # Copies: views would tie the tape and the state to each other's memory between calls.
    return h_tbi.transpose(0, 1), memory_bmi[:, :-1].clone(), memory_bmi[:, -1].clone()


def _segment(
    memory_bmi: Tensor,
    input_tbi: Tensor,
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
    recurrent_bi = h_bi @ matrices_ip[:, :width]
    for input_bi in input_tbi.unbind(0):
        h_bi = steps.read(tape_bni, h_bi, input_bi + recurrent_bi)
        product_bp = h_bi @ matrices_ip
        recurrent_bi = product_bp[:, :width]
        tape_bni = steps.write(tape_bni, h_bi, value(h_bi, product_bp))
        states.append(h_bi)
    return torch.stack(states), torch.cat([tape_bni, h_bi.unsqueeze(1)], dim=1)
