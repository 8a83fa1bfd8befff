"""A plan of the matrix-state engine in plain PyTorch: what every kernel is checked against.

Shape legend: b batch, t time, c channels of a source, h heads, n state columns, v state rows,
x columns or rows or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from elman.ops.common.gates import self_gate, unit
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.reference import recurrence

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
}


def run(
    plan: Plan,
    sources_btc: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    first_bhvn: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return output [B, T, heads, rows] and last state of a plan, in the state's dtype."""
    dtype = first_bhvn.dtype
    inputs = Inputs(
        {name: _role(plan, name, sources_btc).to(dtype) for name, _ in plan.roles},
        {name: parameter.to(dtype) for name, parameter in parameters.items()},
    )
    _prepare(plan, inputs)
    call = ADAPTERS[plan.cell](inputs)
    sequences = {name: inputs.roles[name] for name in ("k", "v", "q")}
    if plan.key != "k":
        sequences["read"] = inputs.roles["read"]
    y_bthv, last_bhvn = recurrence(
        call.step, sequences | call.sequences, call.parameters, first_bhvn, plan.nonlinearity
    )
    return _finish(plan, inputs, y_bthv), last_bhvn


@dataclass
class Inputs:
    """What a cell is given: roles [b, t, h, x] and parameters [h, x] or [h], by name."""

    roles: dict[str, Tensor]
    parameters: dict[str, Tensor]

    def logit(self, number: int = 0) -> Tensor:
        """Return a gate's logit with its bias."""
        return self.roles[f"g{number}"] + self.parameters[f"p{number}"]

    def gate(self, number: int = 0) -> Tensor:
        """Return sigmoid of a gate's logit."""
        return torch.sigmoid(self.logit(number))


@dataclass
class StepCall:
    """A step of :data:`elman.ops.matrix_state.steps.STEPS` with what it takes beside k, v and q."""

    step: str
    sequences: dict[str, Tensor]
    parameters: dict[str, Tensor]

    def __init__(self, step: str, /, *, parameters: Mapping[str, Tensor] = {}, **sequences: Tensor):
        self.step, self.sequences, self.parameters = step, sequences, dict(parameters)


def _role(plan: Plan, name: str, sources_btc: Sequence[Tensor]) -> Tensor:
    place, width = dict(plan.roles)[name], plan.width(name)
    part_btc = sources_btc[place.source][..., place.start : place.start + plan.heads * width]
    return torch.unflatten(part_btc, -1, (plan.heads, width))


def _prepare(plan: Plan, inputs: Inputs) -> None:
    """Apply what stands before the recurrence."""
    roles, parameters = inputs.roles, inputs.parameters
    for name, act in (("q", plan.q_act), ("k", plan.k_act), ("v", plan.v_act)):
        roles[name] = _ACTIVATIONS[act](roles[name])
    for name, wanted in (("q", plan.q_unit), ("k", plan.k_unit)):
        roles[name] = unit(roles[name]) if wanted else roles[name]
    if "z" in roles:
        logit_bthn = roles["z"] + parameters["z_bias"] if plan.z_bias else roles["z"]
        roles["z"] = _ACTIVATIONS[plan.z_act](logit_bthn)
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
    """Apply what stands behind the recurrence."""
    if plan.residual:
        y_bthv = y_bthv + inputs.parameters["residual"] * inputs.roles["v"]
    if plan.self_gate:
        y_bthv = self_gate(y_bthv)
    if plan.gate_act != "none":
        logit_bthv = inputs.roles["gate"]
        if plan.gate_bias:
            logit_bthv = logit_bthv + inputs.parameters["gate_bias"]
        y_bthv = y_bthv * _ACTIVATIONS[plan.gate_act](logit_bthv)
    return y_bthv


def _with_head_numbers(step: str, x: Inputs) -> StepCall:
    """Return a step with the decay and the write gate that the plan gives it."""
    sequences = {name: x.roles[name] for name in ("decay", "write") if name in x.roles}
    constant = (
        {}
        if "decay" in sequences or "decay" not in x.parameters
        else {"decay": x.parameters["decay"].unsqueeze(-1)}
    )
    return StepCall(step, parameters=constant, **sequences)


def _row_gated(act: str) -> Callable[[Inputs], StepCall]:
    return lambda x: StepCall("outer", row=_ACTIVATIONS[act](x.logit()))


def _full_gated(act: str) -> Callable[[Inputs], StepCall]:
    return lambda x: StepCall("outer", row=_ACTIVATIONS[act](x.logit()), column=x.roles["z"])


def _scaled_read(act: str) -> Callable[[Inputs], StepCall]:
    return lambda x: StepCall("delta", row=_ACTIVATIONS[act](x.logit()))


def _averaged(x: Inputs) -> StepCall:
    keep_bthv = x.gate()
    return StepCall("outer", row=keep_bthv, v=(1 - keep_bthv) * x.roles["v"])


def _energy_gated(step: str) -> Callable[[Inputs], StepCall]:
    return lambda x: StepCall(
        step, parameters={"slope": x.parameters["p0"], "bias": x.parameters["p1"]}
    )


def _value_gated(step: str) -> Callable[[Inputs], StepCall]:
    def adapt(x: Inputs) -> StepCall:
        alpha_bthv = x.gate()
        value_bthv = (1 - alpha_bthv) * x.roles["v"]
        own = {"slope": x.parameters["p1"], "bias": x.parameters["p2"]}
        return StepCall(step, parameters=own, row=alpha_bthv, v=value_bthv)

    return adapt


_ROW_ACTS = ("sigmoid", "tanh", "none")
ADAPTERS: dict[str, Callable[[Inputs], StepCall]] = {
    "decayed": lambda x: _with_head_numbers("outer", x),
    "forgetting": lambda x: StepCall("outer", row=torch.sigmoid(x.roles["g0"])),
    **{f"row_gated_{act}": _row_gated(act) for act in _ROW_ACTS},
    **{f"full_gated_{act}": _full_gated(act) for act in _ROW_ACTS},
    "column_gated": lambda x: StepCall("outer", column=x.roles["z"]),
    "averaged": _averaged,
    "delta": lambda x: _with_head_numbers("delta", x),
    "row_gated_delta": lambda x: StepCall("delta", decay=x.gate()),
    **{f"scaled_read_delta_{act}": _scaled_read(act) for act in _ROW_ACTS},
    "write_gated_delta": lambda x: StepCall("e74_retrieved_gate", write=x.gate()),
    "error_gated_delta": lambda x: StepCall("e74_error_gate", logit=x.logit()),
    "state_gated_delta": _energy_gated("e74_state"),
    "retain_gated_delta": _energy_gated("e74_retain"),
    "read_gated": lambda x: StepCall(
        "e71", parameters={"slope": x.parameters["p1"]}, logit=x.logit()
    ),
    "value_gated": _value_gated("e72"),
    "value_gated_inverse": _value_gated("e72_inverse"),
    "erase_write": lambda x: StepCall("e74_ntm", erase=x.gate(0), v=x.gate(1) * x.roles["v"]),
    "residual": lambda x: StepCall("e74_residual", parameters={"scale": x.parameters["p0"]}),
}
"""By cell: which step computes it, with which inputs."""
