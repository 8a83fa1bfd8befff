"""The matrix-state recurrences in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, h heads, s = b*h sequences, n state columns (keys), v state rows
(values), r = 1 or v (rows with a decay of their own). Inside the loop the state is transposed,
s_snv: reads then run along contiguous rows, and one product reads it twice.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from elman.ops.scan import scan


def delta_rule(
    q_bthn: Tensor,
    k_bthn: Tensor,
    v_bthv: Tensor,
    decay_bthr: Tensor | None,
    write_bth: Tensor | None,
    state_bhvn: Tensor,
    linear_state: bool,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`elman.ops.matrix_state.op.delta_rule`, any floating dtype, any device."""
    heads = state_bhvn.shape[:2]
    sequences = [_time_first(x_bthc) for x_bthc in (q_bthn, k_bthn, v_bthv)]
    if decay_bthr is not None:
        sequences.append(_time_first(decay_bthr))
    if write_bth is not None:
        sequences.append(_time_first(write_bth.unsqueeze(-1)))
    segment = partial(
        _segment,
        has_decay=decay_bthr is not None,
        has_write=write_bth is not None,
        linear_state=linear_state,
    )
    y_tsv, s_snv = scan(segment, state_bhvn.flatten(0, 1).mT.contiguous(), sequences)
    y_bthv = torch.unflatten(y_tsv, 1, heads).transpose(0, 1)
    return y_bthv, torch.unflatten(s_snv.mT, 0, heads).contiguous()


def _time_first(x_bthc: Tensor) -> Tensor:
    return x_bthc.transpose(0, 1).flatten(1, 2)


def _segment(
    s_snv: Tensor,
    q_tsn: Tensor,
    k_tsn: Tensor,
    v_tsv: Tensor,
    *gates_tsr: Tensor,
    has_decay: bool,
    has_write: bool,
    linear_state: bool,
) -> tuple[Tensor, Tensor]:
    """Run some steps of S' = phi(c S + w (v - S k) k^T), y = S' q.

    The state after step t is read by q_t and by k_{t+1} in one product. The products are small
    and many, so this halves their number; the last key column of the segment is unused.
    """
    steps = k_tsn.shape[0]
    next_k_tsn = torch.cat([k_tsn[1:], torch.zeros_like(k_tsn[:1])])
    reads_t = torch.stack([q_tsn, next_k_tsn], dim=-2).unbind(0)
    gates = [gate_tsr.unsqueeze(-2).unbind(0) for gate_tsr in gates_tsr]
    decay_t = gates[0] if has_decay else (None,) * steps
    write_t = gates[-1] if has_write else (None,) * steps
    outputs = []
    r_s1v = torch.bmm(k_tsn[0].unsqueeze(-2), s_snv)
    for reads_s2n, k_sn1, v_s1v, decay_s1r, write_s11 in zip(
        reads_t,
        k_tsn.unsqueeze(-1).unbind(0),
        v_tsv.unsqueeze(-2).unbind(0),
        decay_t,
        write_t,
        strict=True,
    ):
        delta_s1v = v_s1v - r_s1v
        if write_s11 is not None:
            delta_s1v = delta_s1v * write_s11
        # Sum and tanh overwrite fresh tensors: autograd keeps one state a step, not three.
        if decay_s1r is None:
            s_snv = torch.addcmul(s_snv, k_sn1, delta_s1v)
        else:
            s_snv = (decay_s1r * s_snv).addcmul_(k_sn1, delta_s1v)
        if not linear_state:
            s_snv = s_snv.tanh_()
        y_s1v, r_s1v = torch.split(torch.bmm(reads_s2n, s_snv), 1, dim=-2)
        outputs.append(y_s1v)
    return torch.stack(outputs).squeeze(-2), s_snv
