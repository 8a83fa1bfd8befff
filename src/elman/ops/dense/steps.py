"""The pointwise mathematics of the dense recurrences, in PyTorch: the table of steps.

Shape legend: t time, b batch, i channels of the state, p rows of the recurrent matrix, c channels
of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

NORM_EPS = 1e-6
"""Added to the mean square by the norm of E59c, E60 and E60b."""

State = tuple[Tensor, ...]
Tensors = Sequence[Tensor]
Advance = Callable[[State, Tensor, Tensors, Tensors], State]
"""``advance(state, pre_bp, others, parameters) -> state``, h first in the state.

``pre_bp`` is the first input plus R h, a fresh tensor. Matrices among the parameters come
transposed."""


@dataclass(frozen=True)
class Step:
    """One row of the table of :func:`elman.ops.dense.op.dense_recurrence`.

    Args:
        advance: The pointwise step.
        activations: One for each input behind the first, applied to all of time at once.
    """

    advance: Advance
    activations: tuple[Callable[[Tensor], Tensor], ...] = ()


# Where it can, an activation overwrites a fresh tensor: autograd then keeps the result alone.


def _tanh(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (pre_bp.tanh_(),)


def _linear(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (pre_bp,)


def _gru(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    (h_bi,), (new_bi,), (u_ii,) = state, others, parameters
    z_bi, r_bi = pre_bp.sigmoid_().chunk(2, dim=-1)
    return (torch.lerp(h_bi, torch.addmm(new_bi, r_bi * h_bi, u_ii).tanh_(), z_bi),)


def _gru_reset_after(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    width = state[0].shape[-1]
    gates_bc, of_h_bi = torch.split(pre_bp, [2 * width, width], dim=-1)
    r_bi, z_bi = gates_bc.sigmoid().chunk(2, dim=-1)
    return (torch.lerp(torch.addcmul(others[0], r_bi, of_h_bi).tanh_(), state[0], z_bi),)


def _lstm(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    width = state[0].shape[-1]
    gates_bc, new_bi = torch.split(pre_bp, [3 * width, width], dim=-1)
    forget_bi, write_bi, output_bi = gates_bc.sigmoid().chunk(3, dim=-1)
    c_bi = torch.addcmul(forget_bi * state[1], write_bi, new_bi.tanh())
    return output_bi * c_bi.tanh(), c_bi


def _slstm(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    new_bi, output_bi, input_bi, forget_bi = pre_bp.chunk(4, dim=-1)
    _, c_bi, n_bi, m_bi = state
    # Nothing is read of an empty memory. Otherwise m of the zero state would be a number like any.
    past_bi = (functional.logsigmoid(forget_bi) + m_bi).masked_fill(n_bi == 0, -torch.inf)
    m_bi = torch.maximum(past_bi, input_bi)
    kept_bi, write_bi = (past_bi - m_bi).exp(), (input_bi - m_bi).exp()
    c_bi = torch.addcmul(kept_bi * c_bi, write_bi, new_bi.tanh())
    n_bi = torch.addcmul(write_bi, kept_bi, n_bi)
    return output_bi.sigmoid() * c_bi / n_bi, c_bi, n_bi, m_bi


def _rms_norm(x_bi: Tensor) -> Tensor:
    return functional.rms_norm(x_bi, x_bi.shape[-1:], eps=NORM_EPS)


def _normalized_scalar(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (_rms_norm(torch.addcmul(state[0], parameters[0], pre_bp.tanh_())),)


def _normalized(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (_rms_norm(torch.addcmul(state[0], others[0], pre_bp.tanh_())),)


def _normalized_sum(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (_rms_norm(state[0] + pre_bp),)


def _mix(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (torch.lerp(pre_bp.tanh_(), state[0], others[0]),)


def _mix_all(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    candidate_bi, retain_bi = pre_bp.chunk(2, dim=-1)
    return (torch.lerp(candidate_bi.tanh(), state[0], retain_bi.sigmoid()),)


def _mix_gate(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (torch.lerp(others[0], state[0], pre_bp.sigmoid_()),)


def _two_gates(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    retain_bi, write_bi = others
    return (torch.addcmul(retain_bi * state[0], write_bi, pre_bp.tanh_()),)


def _two_gates_all(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    width = state[0].shape[-1]
    candidate_bi, gates_bc = pre_bp[:, :width].tanh(), pre_bp[:, width:].sigmoid()
    retain_bi, write_bi = gates_bc.chunk(2, dim=-1)
    return (torch.addcmul(retain_bi * state[0], write_bi, candidate_bi),)


def _residual(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (torch.addcmul(state[0], others[0], pre_bp.tanh_()),)


def _as_is(x: Tensor) -> Tensor:
    return x


STEPS: dict[str, Step] = {
    "tanh": Step(_tanh),
    "linear": Step(_linear),
    "gru": Step(_gru, (_as_is,)),
    "gru_reset_after": Step(_gru_reset_after, (_as_is,)),
    "lstm": Step(_lstm),
    "slstm": Step(_slstm),
    "normalized_scalar": Step(_normalized_scalar),
    "normalized": Step(_normalized, (torch.sigmoid,)),
    "normalized_sum": Step(_normalized_sum),
    "mix": Step(_mix, (torch.sigmoid,)),
    "mix_all": Step(_mix_all),
    "mix_gate": Step(_mix_gate, (torch.tanh,)),
    "two_gates": Step(_two_gates, (torch.sigmoid, torch.sigmoid)),
    "two_gates_all": Step(_two_gates_all),
    "residual": Step(_residual, (torch.sigmoid,)),
}
"""Every step by name; the table of :func:`elman.ops.dense.op.dense_recurrence` says what it is."""
