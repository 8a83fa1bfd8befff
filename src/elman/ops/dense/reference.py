"""The dense recurrences in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, i channels of the state, s parts of the state, r rank. A weight's
suffix gives its axes after transposition, [in, out].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from elman.ops.scan import scan

State = tuple[Tensor, ...]
Tensors = Sequence[Tensor]
Step = Callable[[State, Tensors, Tensors], State]
"""``step(state, inputs, transposed weights) -> state``; h stands first in the state."""


def dense_recurrence(
    step: str, inputs: Tensors, weights: Tensors, state: Tensors
) -> tuple[Tensor, State]:
    """Compute :func:`elman.ops.dense.op.dense_recurrence`, any floating dtype, any device."""
    # The weights are shared by all steps: one transposed copy makes every product a plain GEMM.
    transposed = [weight.t().contiguous() for weight in weights]
    segment = partial(_segment, step=STEPS[step], weights=transposed)
    sequences = [sequence.transpose(0, 1) for sequence in inputs]
    h_tbi, final_sbi = scan(segment, torch.stack(tuple(state)), sequences)
    return h_tbi.transpose(0, 1), final_sbi.unbind(0)


def _segment(
    state_sbi: Tensor, *inputs_t: Tensor, step: Step, weights: Tensors
) -> tuple[Tensor, Tensor]:
    """Run one step after the other."""
    state = state_sbi.unbind(0)
    outputs = []
    for inputs in zip(*(sequence.unbind(0) for sequence in inputs_t), strict=True):
        state = step(state, inputs, weights)
        outputs.append(state[0])
    return torch.stack(outputs), torch.stack(state)


def _tanh(state: State, inputs: Tensors, weights: Tensors) -> State:
    (h_bi,), (a_bi,), (w_ii,) = state, inputs, weights
    return (torch.addmm(a_bi, h_bi, w_ii).tanh_(),)


def _linear(state: State, inputs: Tensors, weights: Tensors) -> State:
    (h_bi,), (a_bi,), (w_ii,) = state, inputs, weights
    return (torch.addmm(a_bi, h_bi, w_ii),)


def _low_rank(state: State, inputs: Tensors, weights: Tensors) -> State:
    (h_bi,), (a_bi,), (u_ri, v_ir) = state, inputs, weights
    return (torch.addmm(a_bi, h_bi @ v_ir, u_ri).tanh_(),)


def _gru(state: State, inputs: Tensors, weights: Tensors) -> State:
    (h_bi,), (gates_bi, new_bi), (u_gates, u_new) = state, inputs, weights
    z_bi, r_bi = torch.addmm(gates_bi, h_bi, u_gates).sigmoid_().chunk(2, dim=-1)
    n_bi = torch.addmm(new_bi, r_bi * h_bi, u_new).tanh_()
    return (torch.lerp(h_bi, n_bi, z_bi),)


def _lstm(state: State, inputs: Tensors, weights: Tensors) -> State:
    (h_bi, c_bi), (a_bi,), (u_all,) = state, inputs, weights
    width = h_bi.shape[-1]
    gates_bi, new_bi = torch.split(torch.addmm(a_bi, h_bi, u_all), [3 * width, width], dim=-1)
    forget_bi, write_bi, output_bi = gates_bi.sigmoid().chunk(3, dim=-1)
    c_bi = torch.addcmul(forget_bi * c_bi, write_bi, new_bi.tanh())
    return output_bi * c_bi.tanh(), c_bi


STEPS: dict[str, Step] = {
    "tanh": _tanh,
    "linear": _linear,
    "low_rank": _low_rank,
    "gru": _gru,
    "lstm": _lstm,
}
