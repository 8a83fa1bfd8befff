"""Plans of the matrix-state engine in plain PyTorch: a loop over time, gradient by autograd.

Every kernel is checked against it. :func:`run` computes a plan, :func:`recurrence` a step by name.

Shape legend: t time, b batch, c channels of a source (in the loop columns, rows or 1), h heads,
s = b*h sequences, n state columns (keys), v state rows (values), x columns or rows or 1, m reads of
a step. Inside the loop the state is transposed, s_snv: reads then run along contiguous rows, and
one product computes both reads of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.gates import self_gate, unit
from elman.ops.common.precision import wide_dtype
from elman.ops.common.scan import scan
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.steps import (
    ACTIVATIONS,
    ADAPTERS,
    NONLINEARITIES,
    STEPS,
    Inputs,
    Step,
    StepCall,
    head_numbers,
)


def run(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    first_bhvn: Tensor,
    resets_bt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`elman.ops.matrix_state.op.run`; the output has the state's dtype."""
    inputs, call = step_call(plan, sources_btc, parameters, first_bhvn.dtype)
    sequences = {name: inputs.roles[name] for name in ("k", "v", "q")} | dict(call.sequences)
    if plan.key != "k":
        sequences["read"] = inputs.roles["read"]
    y_bthv, last_bhvn = recurrence(
        call.step or plan.cell,
        sequences,
        call.parameters,
        first_bhvn,
        plan.nonlinearity,
        resets_bt,
    )
    return _finish(plan, inputs, y_bthv), last_bhvn


def step_call(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> tuple[Inputs, StepCall]:
    """Return a plan's roles and parameters, and what its step takes beside k, v and q."""
    inputs = Inputs(
        {name: _role(plan, name, sources_btc).to(dtype) for name, _ in plan.roles},
        {name: parameter.to(dtype) for name, parameter in parameters.items()},
    )
    _prepare(plan, inputs)
    return inputs, ADAPTERS.get(plan.cell, head_numbers)(inputs)


def _role(plan: Plan, name: str, sources_btc: Sequence[Tensor]) -> Tensor:
    place, width = dict(plan.roles)[name], plan.width(name)
    part_btc = sources_btc[place.source][..., place.start : place.start + plan.heads * width]
    return torch.unflatten(part_btc, -1, (plan.heads, width))


def _prepare(plan: Plan, inputs: Inputs) -> None:
    """Apply what a plan has before the recurrence."""
    roles, parameters = inputs.roles, inputs.parameters
    for name, act in (("q", plan.q_act), ("k", plan.k_act), ("v", plan.v_act)):
        roles[name] = ACTIVATIONS[act](roles[name])
    for name, wanted in (("q", plan.q_unit), ("k", plan.k_unit)):
        roles[name] = unit(roles[name]) if wanted else roles[name]
    if "z" in roles:
        logit_bthn = roles["z"] + parameters["z_bias"] if plan.z_bias else roles["z"]
        roles["z"] = ACTIVATIONS[plan.z_act](logit_bthn)
    if plan.key == "zk":
        roles["read"] = roles["z"] * roles["k"]
    if plan.write == "sigmoid":
        roles["write"] = torch.sigmoid(roles["write"])
    if plan.decay == "sigmoid":
        roles["decay"] = torch.sigmoid(roles["decay"])
    if plan.decay == "mamba":
        step_bth1 = functional.softplus(roles["decay"] + parameters["dt_bias"].unsqueeze(-1))
        roles["decay"] = torch.exp(-parameters["decay"].exp().unsqueeze(-1) * step_bth1)


def _finish(plan: Plan, inputs: Inputs, y_bthv: Tensor) -> Tensor:
    """Apply what a plan has behind the recurrence."""
    if plan.residual:
        y_bthv = y_bthv + inputs.parameters["residual"] * inputs.roles["v"]
    if plan.self_gate:
        y_bthv = self_gate(y_bthv)
    if plan.gate_act != "none":
        logit_bthv = inputs.roles["gate"]
        if plan.gate_bias:
            logit_bthv = logit_bthv + inputs.parameters["gate_bias"]
        y_bthv = y_bthv * ACTIVATIONS[plan.gate_act](logit_bthv)
    return y_bthv


def _time_first(x_bthc: Tensor) -> Tensor:
    return x_bthc.transpose(0, 1).flatten(1, 2)


def first_state(plan: Plan, source_btc: Tensor) -> Tensor:
    """Return the state [B, heads, rows, columns] that starts a sequence: zeros, fp32 or wider."""
    shape = (source_btc.shape[0], plan.heads, plan.rows, plan.columns)
    return source_btc.new_zeros(shape, dtype=wide_dtype(source_btc.dtype))


def recurrence(
    step: str,
    sequences: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    state_bhvn: Tensor,
    nonlinearity: str,
    resets_bt: Tensor | None = None,
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
        resets=resets_bt is not None,
        parameters={name: _expanded(p, batch_heads) for name, p in parameters.items()},
        activate=NONLINEARITIES[nonlinearity],
    )
    s_snv = state_bhvn.flatten(0, 1).mT.contiguous()
    if resets_bt is not None:
        first.append(resets_bt.repeat_interleave(batch_heads[1], dim=0).mT)
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
    resets: bool,
) -> tuple[Tensor, Tensor]:
    """Run some steps. Sequences: what reads, if the step reads; resets, if any; ``names``."""
    others = list(sequences)
    read_tsn = others.pop(0) if step.reads else None
    resets_ts = others.pop(0) if resets else None
    slices = [
        x_tsc.unsqueeze(-1 if name in step.columns else -2).unbind(0)
        for name, x_tsc in zip(names, others, strict=True)
    ]

    def advance(s_snv: Tensor, r_s1v: Tensor | None, *inputs: Tensor) -> Tensor:
        named = dict(zip(names, inputs, strict=True))
        return activate(step.run(s_snv, r_s1v, **named, **parameters))

    inputs_t = list(zip(*slices, strict=True))
    loop = _loop if resets_ts is None else partial(_loop_with_resets, resets_ts)
    outputs, s_snv = loop(advance, s_snv, q_tsn, read_tsn, inputs_t)
    return torch.stack(outputs).squeeze(-2), s_snv


def _loop(
    advance: Callable[..., Tensor],
    s_snv: Tensor,
    q_tsn: Tensor,
    read_tsn: Tensor | None,
    inputs_t: Sequence[tuple[Tensor, ...]],
) -> tuple[list[Tensor], Tensor]:
    """Run some steps; the state after step t is read by q_t and, if any, by read_{t+1} at once."""
    r_s1v = None
    reads_t = q_tsn.unsqueeze(-2).unbind(0)
    if read_tsn is not None:
        next_read_tsn = torch.cat([read_tsn[1:], torch.zeros_like(read_tsn[:1])])
        reads_t = torch.stack([q_tsn, next_read_tsn], dim=-2).unbind(0)
        r_s1v = torch.bmm(read_tsn[0].unsqueeze(-2), s_snv)
    outputs = []
    for reads_smn, inputs in zip(reads_t, inputs_t, strict=True):
        s_snv = advance(s_snv, r_s1v, *inputs)
        y_s1v = torch.bmm(reads_smn, s_snv)
        if read_tsn is not None:
            y_s1v, r_s1v = torch.split(y_s1v, 1, dim=-2)
        outputs.append(y_s1v)
    return outputs, s_snv


def _loop_with_resets(
    resets_ts: Tensor,
    advance: Callable[..., Tensor],
    s_snv: Tensor,
    q_tsn: Tensor,
    read_tsn: Tensor | None,
    inputs_t: Sequence[tuple[Tensor, ...]],
) -> tuple[list[Tensor], Tensor]:
    """Run some steps, each from zeros where its row is reset.

    The read comes behind the reset and is a product of its own: a state before a reset that is not
    finite reaches nothing, forward or back.
    """
    r_s1v, outputs = None, []
    for t, inputs in enumerate(inputs_t):
        s_snv = s_snv.masked_fill(resets_ts[t, :, None, None], 0)
        if read_tsn is not None:
            r_s1v = torch.bmm(read_tsn[t].unsqueeze(-2), s_snv)
        s_snv = advance(s_snv, r_s1v, *inputs)
        outputs.append(torch.bmm(q_tsn[t].unsqueeze(-2), s_snv))
    return outputs, s_snv
