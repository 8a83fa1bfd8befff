"""The gated dense recurrences in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, i channels of the state, k = blocks * i channels of the
pre-activations, p = products * i of them that read the state, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.scan import scan

NORM_EPS = 1e-6
"""Added to the mean square by the norm of E60 and E60b."""

Advance = Callable[[Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]
"""``advance(h_bi, pre_bp, gates_bi, parameters) -> h_bi``: the pointwise step."""


@dataclass(frozen=True)
class _Step:
    """One row of the table of :func:`elman.ops.dense.gated_op.gated`.

    Args:
        advance: The step, given the pre-activations of the blocks that read the state.
        products: Number of those blocks.
        gates: Activations of the other blocks, which are known before the loop.
    """

    advance: Advance
    products: int = 1
    gates: tuple[Callable[[Tensor], Tensor], ...] = ()


def gated(
    step: str,
    inputs_btk: Tensor,
    recurrent: Sequence[Tensor],
    parameters: Sequence[Tensor],
    state_bi: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`elman.ops.dense.gated_op.gated`, any floating dtype, any device."""
    chosen = _STEPS[step]
    width = state_bi.shape[-1]
    reads = chosen.products * width
    assert inputs_btk.shape[-1] == reads + len(chosen.gates) * width
    assert recurrent[0].shape[0] == reads
    inputs_tbk = inputs_btk.transpose(0, 1)
    blocks_tbi = torch.split(inputs_tbk[..., reads:], width, dim=-1) if chosen.gates else ()
    gates_tbi = [gate(block) for gate, block in zip(chosen.gates, blocks_tbi, strict=True)]
    segment = partial(
        _segment,
        advance=chosen.advance,
        # Shared by all steps: transposed copies make every product a plain GEMM.
        recurrent_t=[matrix.t().contiguous() for matrix in reversed(recurrent)],
        parameters=parameters,
    )
    h_tbi, state_bi = scan(segment, state_bi, [inputs_tbk[..., :reads], *gates_tbi])
    return h_tbi.transpose(0, 1), state_bi


def _segment(
    h_bi: Tensor,
    inputs_tbp: Tensor,
    *gates_tbi: Tensor,
    advance: Advance,
    recurrent_t: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Run some steps of h' = advance(h, input + R h)."""
    *inner, outer = recurrent_t
    states = []
    for input_bp, *gates_bi in zip(
        inputs_tbp.unbind(0), *(gate_tbi.unbind(0) for gate_tbi in gates_tbi), strict=True
    ):
        read = h_bi
        for matrix in inner:
            read = read @ matrix
        h_bi = advance(h_bi, torch.addmm(input_bp, read, outer), gates_bi, parameters)
        states.append(h_bi)
    return torch.stack(states), h_bi


def _rms_norm(x_bi: Tensor) -> Tensor:
    return functional.rms_norm(x_bi, x_bi.shape[-1:], eps=NORM_EPS)


# In every step tanh overwrites a fresh tensor: autograd keeps its result alone.


def _normalised_scalar(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    (alpha,) = parameters
    return _rms_norm(torch.addcmul(h_bi, alpha, pre_bp.tanh_()))


def _normalised(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    (gate_bi,) = gates_bi
    return _rms_norm(torch.addcmul(h_bi, gate_bi, pre_bp.tanh_()))


def _mix_all(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    candidate_bi, retain_bi = pre_bp.chunk(2, dim=-1)
    return torch.lerp(candidate_bi.tanh(), h_bi, retain_bi.sigmoid())


def _mix(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    (retain_bi,) = gates_bi
    return torch.lerp(pre_bp.tanh_(), h_bi, retain_bi)


def _two_gates(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    retain_bi, write_bi = gates_bi
    return torch.addcmul(retain_bi * h_bi, write_bi, pre_bp.tanh_())


def _two_gates_all(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    width = h_bi.shape[-1]
    candidate_bi, gates_b2i = pre_bp[:, :width].tanh(), pre_bp[:, width:].sigmoid()
    retain_bi, write_bi = gates_b2i.chunk(2, dim=-1)
    return torch.addcmul(retain_bi * h_bi, write_bi, candidate_bi)


def _residual(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    (write_bi,) = gates_bi
    return torch.addcmul(h_bi, write_bi, pre_bp.tanh_())


def _mix_gate(
    h_bi: Tensor, pre_bp: Tensor, gates_bi: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    (candidate_bi,) = gates_bi
    return torch.lerp(candidate_bi, h_bi, pre_bp.sigmoid_())


_STEPS = {
    "normalised_scalar": _Step(_normalised_scalar),
    "normalised": _Step(_normalised, gates=(torch.sigmoid,)),
    "mix_all": _Step(_mix_all, products=2),
    "mix": _Step(_mix, gates=(torch.sigmoid,)),
    "two_gates": _Step(_two_gates, gates=(torch.sigmoid, torch.sigmoid)),
    "two_gates_all": _Step(_two_gates_all, products=3),
    "residual": _Step(_residual, gates=(torch.sigmoid,)),
    "mix_gate": _Step(_mix_gate, gates=(torch.tanh,)),
}
