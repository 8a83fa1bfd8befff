"""The matrix-state recurrences in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, h heads, s = b*h sequences, n state columns (keys), v state rows
(values), r = 1 or v (rows with a decay of their own), c columns or rows, m reads of a step. Inside
the loop the state is transposed, s_snv: reads then run along contiguous rows, and one product
reads it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from elman.ops.matrix_state.steps import NONLINEARITIES, STEPS, Step
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


def recurrence(
    step: str,
    sequences: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor,
    nonlinearity: str,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`elman.ops.matrix_state.op.recurrence`, any floating dtype, any device."""
    chosen = STEPS[step]
    _check_names(chosen, sequences, parameters)
    batch_heads = state_bhvn.shape[:2]
    named = {name: _time_first(sequence) for name, sequence in sequences.items()}
    first = [named.pop("q")]
    if chosen.reads:
        first.append(named.pop("read", named["k"]))
    segment = partial(
        _step_segment,
        step=chosen,
        names=tuple(named),
        parameters={name: _expanded(p, batch_heads) for name, p in parameters.items()},
        activate=NONLINEARITIES[nonlinearity],
    )
    s_snv = state_bhvn.flatten(0, 1).mT.contiguous()
    y_tsv, s_snv = scan(segment, s_snv, [*first, *named.values()])
    y_bthv = torch.unflatten(y_tsv, 1, batch_heads).transpose(0, 1)
    return y_bthv, torch.unflatten(s_snv.mT, 0, batch_heads).contiguous()


def _check_names(
    step: Step, sequences: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """Assert that a call gives a step what it takes, no more and no less."""
    known = step.columns | step.rows
    assert known - step.optional <= set(sequences) - {"q", "read"} <= known, set(sequences)
    assert step.reads or "read" not in sequences
    assert step.parameters - step.optional <= set(parameters) <= step.parameters, set(parameters)


def _expanded(parameter: Tensor, batch_heads: tuple[int, ...]) -> Tensor:
    """Return numbers per head [h, v] or [h, 1] for every sequence, a matrix [1, v, v] as it is."""
    if parameter.ndim == 3:
        return parameter
    return parameter.expand(*batch_heads, -1).flatten(0, 1).unsqueeze(-2)


def _step_segment(
    s_snv: Tensor,
    q_tsn: Tensor,
    *sequences: Tensor,
    step: Step,
    names: tuple[str, ...],
    parameters: Mapping[str, Tensor],
    activate: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Run some steps; the state after step t is read by q_t and, if any, by read_{t+1} at once."""
    r_s1v = None
    reads_t = q_tsn.unsqueeze(-2).unbind(0)
    if step.reads:
        read_tsn, sequences = sequences[0], sequences[1:]
        next_read_tsn = torch.cat([read_tsn[1:], torch.zeros_like(read_tsn[:1])])
        reads_t = torch.stack([q_tsn, next_read_tsn], dim=-2).unbind(0)
        r_s1v = torch.bmm(read_tsn[0].unsqueeze(-2), s_snv)
    slices = [
        x_tsc.unsqueeze(-1 if name in step.columns else -2).unbind(0)
        for name, x_tsc in zip(names, sequences, strict=True)
    ]
    outputs = []
    for reads_smn, *inputs in zip(reads_t, *slices, strict=True):
        named = dict(zip(names, inputs, strict=True))
        s_snv = activate(step.run(s_snv, r_s1v, **named, **parameters))
        y_s1v = torch.bmm(reads_smn, s_snv)
        if step.reads:
            y_s1v, r_s1v = torch.split(y_s1v, 1, dim=-2)
        outputs.append(y_s1v)
    return torch.stack(outputs).squeeze(-2), s_snv
