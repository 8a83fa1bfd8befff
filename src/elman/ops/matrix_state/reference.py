"""The matrix-state recurrences in plain PyTorch: a loop over time, gradient by autograd.

Shape legend: t time, b batch, h heads, s = b*h sequences, n state columns (keys), v state rows
(values), c columns, rows or 1, m reads of a step. Inside the loop the state is transposed, s_snv:
reads then run along contiguous rows, and one product reads it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from elman.ops.common.scan import scan
from elman.ops.matrix_state.steps import NONLINEARITIES, STEPS, Step


def _time_first(x_bthc: Tensor) -> Tensor:
    return x_bthc.transpose(0, 1).flatten(1, 2)


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
