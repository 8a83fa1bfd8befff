"""The dense recurrences in plain PyTorch: a table of steps and one loop over time.

Gradient by autograd. Shape legend: t time, b batch, i channels of the state, s parts of the state,
p rows of the recurrent matrix, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.scan import scan

NORM_EPS = 1e-6
"""Added to the mean square by the norm of E60 and E60b."""

State = tuple[Tensor, ...]
Tensors = Sequence[Tensor]
Advance = Callable[[State, Tensor, Tensors, Tensors], State]
"""``advance(state, pre_bp, others, parameters) -> state``, h first in the state.

``pre_bp`` is the first input plus R h, a fresh tensor; matrices among the parameters come
transposed."""


@dataclass(frozen=True)
class Step:
    """One row of the table of :func:`elman.ops.dense.op.dense_recurrence`.

    Args:
        advance: The pointwise step.
        activations: Of the inputs behind the first, one each, applied to all of time at once.
    """

    advance: Advance
    activations: tuple[Callable[[Tensor], Tensor], ...] = ()


def dense_recurrence(
    step: str, inputs: Tensors, recurrent: Tensors, state: Tensors, parameters: Tensors
) -> tuple[Tensor, State]:
    """Compute :func:`elman.ops.dense.op.dense_recurrence`, any floating dtype, any device."""
    chosen = STEPS[step]
    assert inputs[0].shape[-1] == recurrent[0].shape[0]
    first_tbp, *others = (sequence.transpose(0, 1) for sequence in inputs)
    activated = [act(other) for act, other in zip(chosen.activations, others, strict=True)]
    segment = partial(
        _segment,
        advance=chosen.advance,
        recurrent=[_transposed(matrix) for matrix in reversed(recurrent)],
        parameters=[_transposed(one) if one.ndim == 2 else one for one in parameters],
    )
    h_tbi, final_sbi = scan(segment, torch.stack(tuple(state)), [first_tbp, *activated])
    return h_tbi.transpose(0, 1), final_sbi.unbind(0)


def _transposed(matrix: Tensor) -> Tensor:
    """Return a copy that all steps share: every product is then a plain GEMM."""
    return matrix.t().contiguous()


def _segment(
    state_sbi: Tensor,
    *inputs_t: Tensor,
    advance: Advance,
    recurrent: Tensors,
    parameters: Tensors,
) -> tuple[Tensor, Tensor]:
    """Run one step after the other."""
    *inner, outer = recurrent
    state = state_sbi.unbind(0)
    outputs = []
    for input_bp, *others in zip(*(sequence.unbind(0) for sequence in inputs_t), strict=True):
        read = state[0]
        for factor in inner:
            read = read @ factor
        state = advance(state, torch.addmm(input_bp, read, outer), others, parameters)
        outputs.append(state[0])
    return torch.stack(outputs), torch.stack(state)


# In every step an activation overwrites a fresh tensor where it can: autograd keeps its result
# alone.


def _tanh(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (pre_bp.tanh_(),)


def _linear(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (pre_bp,)


def _gru(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    (h_bi,), (new_bi,), (u_ii,) = state, others, parameters
    z_bi, r_bi = pre_bp.sigmoid_().chunk(2, dim=-1)
    return (torch.lerp(h_bi, torch.addmm(new_bi, r_bi * h_bi, u_ii).tanh_(), z_bi),)


def _lstm(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    width = state[0].shape[-1]
    gates_bc, new_bi = torch.split(pre_bp, [3 * width, width], dim=-1)
    forget_bi, write_bi, output_bi = gates_bc.sigmoid().chunk(3, dim=-1)
    c_bi = torch.addcmul(forget_bi * state[1], write_bi, new_bi.tanh())
    return output_bi * c_bi.tanh(), c_bi


def _rms_norm(x_bi: Tensor) -> Tensor:
    return functional.rms_norm(x_bi, x_bi.shape[-1:], eps=NORM_EPS)


def _normalised_scalar(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (_rms_norm(torch.addcmul(state[0], parameters[0], pre_bp.tanh_())),)


def _normalised(state: State, pre_bp: Tensor, others: Tensors, parameters: Tensors) -> State:
    return (_rms_norm(torch.addcmul(state[0], others[0], pre_bp.tanh_())),)


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
    "lstm": Step(_lstm),
    "normalised_scalar": Step(_normalised_scalar),
    "normalised": Step(_normalised, (torch.sigmoid,)),
    "mix": Step(_mix, (torch.sigmoid,)),
    "mix_all": Step(_mix_all),
    "mix_gate": Step(_mix_gate, (torch.tanh,)),
    "two_gates": Step(_two_gates, (torch.sigmoid, torch.sigmoid)),
    "two_gates_all": Step(_two_gates_all),
    "residual": Step(_residual, (torch.sigmoid,)),
}
"""Every step by name; the table of :func:`elman.ops.dense.op.dense_recurrence` says what it is."""
