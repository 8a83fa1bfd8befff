"""The pointwise mathematics of the matrix-state recurrences, in PyTorch.

:data:`STEPS` has pure functions that return the new state before its nonlinearity.
:data:`ADAPTERS` has the gates that a step takes, which are computed for all of time at once. The
loop over time (reference.py) knows no recurrence by name.

Shape legend: s = batch * heads sequences, n state columns (keys), v state rows (values). The state
stands transposed, s_snv. Inside a step, what lives on columns is [s, n, 1], what lives on rows is
[s, 1, v] and a number per head is [s, 1, 1]: everything broadcasts to the state. Before the loop
b batch, t time, h heads, x columns or rows or 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Step:
    """What the loop over time needs to know of one step.

    Args:
        run: ``run(s_snv, r_s1v, **inputs)`` returns the new state in a fresh tensor, before the
            nonlinearity. r = S k of the old state, or None where ``reads`` is False.
        columns: Sequences over the columns of the state, [b, t, h, n].
        rows: Sequences over its rows, [b, t, h, v], or of one number per head, [b, t, h, 1].
        parameters: Inputs that do not change over time: [h, v], [h, 1], [h, v, v], or [1, v, v]
            for a matrix that every head shares. A name may be a row sequence and a parameter: a
            call gives one.
        optional: Names among those above that a call may leave out.
        reads: Whether the step reads the old state with a key.
    """

    run: Callable[..., Tensor]
    columns: frozenset[str] = frozenset({"k"})
    rows: frozenset[str] = frozenset({"v"})
    parameters: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    reads: bool = True


def _decayed(
    s_snv: Tensor,
    r_s1v: Tensor | None,
    *,
    k: Tensor,
    v: Tensor,
    row: Tensor | None = None,
    column: Tensor | None = None,
    decay: Tensor | None = None,
) -> Tensor:
    """S' = S o (row (x) column) * decay + v (x) k: each of the three decays may be left out."""
    for scale in (row, column, decay):
        if scale is not None:
            s_snv = scale * s_snv
    return torch.addcmul(s_snv, k, v)


def _delta(
    s_snv: Tensor,
    r_s1v: Tensor,
    *,
    k: Tensor,
    v: Tensor,
    row: Tensor | None = None,
    decay: Tensor | None = None,
    write: Tensor | None = None,
) -> Tensor:
    """S' = decay > S + write (v - row o r) (x) k: the delta rule, three parts optional."""
    delta_s1v = v - r_s1v if row is None else torch.addcmul(v, row, r_s1v, value=-1)
    if write is not None:
        delta_s1v = delta_s1v * write
    if decay is None:
        return torch.addcmul(s_snv, k, delta_s1v)
    # Onto a fresh tensor: autograd keeps one state a step, not two.
    return (decay * s_snv).addcmul_(k, delta_s1v)


def _read_gated(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, logit: Tensor, slope: Tensor
) -> Tensor:
    """S' = a > S + (1 - a) > v (x) k, a = sigmoid(logit + slope o r)."""
    alpha_s1v = torch.sigmoid(torch.addcmul(logit, slope, r_s1v))
    return (alpha_s1v * s_snv).addcmul_(k, v - alpha_s1v * v)


def _value_gated(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, row: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """S' = row > S + (v o g) (x) k, g = sigmoid(slope o r + bias); v is already (1 - row) o v."""
    gated_s1v = v * torch.sigmoid(torch.addcmul(bias, slope, r_s1v))
    return (row * s_snv).addcmul_(k, gated_s1v)


def _value_gated_inverse(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, row: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """As :func:`_value_gated` with g = sigmoid(-slope o |r| + bias)."""
    gated_s1v = v * torch.sigmoid(torch.addcmul(bias, slope, r_s1v.abs(), value=-1))
    return (row * s_snv).addcmul_(k, gated_s1v)


def _retain_gated_delta(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """S' = S + ((1 - a) o (v - r)) (x) k, a = sigmoid(slope o mean_j S_ij^2 + bias)."""
    delta_s1v = v - r_s1v
    return torch.addcmul(s_snv, k, delta_s1v - _energy_gate(s_snv, slope, bias) * delta_s1v)


def _state_gated_delta(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """S' = S + (a o (v - r)) (x) k, a as in the retain gate."""
    return torch.addcmul(s_snv, k, _energy_gate(s_snv, slope, bias) * (v - r_s1v))


def _energy_gate(s_snv: Tensor, slope: Tensor, bias: Tensor) -> Tensor:
    energy_s1v = s_snv.square().mean(-2, keepdim=True)
    return torch.sigmoid(torch.addcmul(bias, slope, energy_s1v))


def _residual(s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    """S' = S + scale > tanh((v - r) (x) k)."""
    return torch.addcmul(s_snv, scale, (k * (v - r_s1v)).tanh_())


def _erase_write(
    s_snv: Tensor, r_s1v: Tensor | None, *, k: Tensor, v: Tensor, erase: Tensor
) -> Tensor:
    """S' = S o (1 - erase (x) k) + v (x) k; v is already (write gate) o v."""
    return torch.addcmul(s_snv, k, torch.addcmul(v, erase, s_snv, value=-1))


def _write_gated_delta(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, write: Tensor
) -> Tensor:
    """S' = S + (write o (v - r)) (x) k."""
    return torch.addcmul(s_snv, k, write * (v - r_s1v))


def _error_gated_delta(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, logit: Tensor
) -> Tensor:
    """S' = S + (g o (v - r)) (x) k, g = sigmoid(logit + mean_i (v - r)_i^2)."""
    delta_s1v = v - r_s1v
    write_s1v = torch.sigmoid(logit + delta_s1v.square().mean(-1, keepdim=True))
    return torch.addcmul(s_snv, k, write_s1v * delta_s1v)


def _e63m(
    s_snv: Tensor,
    r_s1v: Tensor,
    *,
    k: Tensor,
    row: Tensor,
    input: Tensor,
    mix: Tensor,
) -> Tensor:
    """S' = row > S + ((1 - row) o tanh(input + mix tanh(r))) (x) k."""
    value_s1v = torch.tanh(input + torch.tanh(r_s1v) @ mix.mT)
    return (row * s_snv).addcmul_(k, value_s1v - row * value_s1v)


def _m2rnn(
    s_snv: Tensor, r_s1v: Tensor | None, *, k: Tensor, v: Tensor, decay: Tensor, mixes: Tensor
) -> Tensor:
    """S' = f S + (1 - f) tanh(W^T S + v (x) k), f = decay; a matrix [h, v, v] mixes each head."""
    s_bhnv = s_snv.unflatten(0, (-1, mixes.shape[0]))
    new_snv = torch.tanh(torch.matmul(s_bhnv, mixes).flatten(0, 1) + k * v)
    return new_snv + decay * (s_snv - new_snv)


_V = frozenset({"v"})
_SLOPE_BIAS = frozenset({"slope", "bias"})

STEPS: dict[str, Step] = {
    "decayed": Step(
        _decayed,
        columns=frozenset({"k", "column"}),
        rows=_V | {"row", "decay"},
        parameters=frozenset({"decay"}),
        optional=frozenset({"row", "column", "decay"}),
        reads=False,
    ),
    "delta": Step(
        _delta,
        rows=_V | {"row", "decay", "write"},
        parameters=frozenset({"decay"}),
        optional=frozenset({"row", "decay", "write"}),
    ),
    "read_gated": Step(_read_gated, rows=_V | {"logit"}, parameters=frozenset({"slope"})),
    "value_gated": Step(_value_gated, rows=_V | {"row"}, parameters=_SLOPE_BIAS),
    "value_gated_inverse": Step(_value_gated_inverse, rows=_V | {"row"}, parameters=_SLOPE_BIAS),
    "retain_gated_delta": Step(_retain_gated_delta, parameters=_SLOPE_BIAS),
    "state_gated_delta": Step(_state_gated_delta, parameters=_SLOPE_BIAS),
    "residual": Step(_residual, parameters=frozenset({"scale"})),
    "erase_write": Step(_erase_write, rows=_V | {"erase"}, reads=False),
    "write_gated_delta": Step(_write_gated_delta, rows=_V | {"write"}),
    "error_gated_delta": Step(_error_gated_delta, rows=_V | {"logit"}),
    "m2rnn": Step(_m2rnn, rows=_V | {"decay"}, parameters=frozenset({"mixes"}), reads=False),
    "e63m": Step(_e63m, rows=frozenset({"row", "input"}), parameters=frozenset({"mix"})),
}
"""Every step by name (matrix-state specification 3 to 9).

A step has the name that recurrences.py and plans have for its recurrence. ``decayed`` and ``delta``
also serve their relatives, which differ in the gates alone (:data:`ADAPTERS`). ``e63m`` and
``m2rnn``, whose rows meet, have no plan. Every step takes the query ``q``. A step that reads also
takes ``read``, the key of the read where that is not ``k``."""


def _rms_norm(s_snv: Tensor) -> Tensor:
    size = s_snv.shape[-2] * s_snv.shape[-1]
    return s_snv / (_norm(s_snv) / math.sqrt(size) + 1e-6)


def _frobenius_norm(s_snv: Tensor) -> Tensor:
    return s_snv / (_norm(s_snv) + 1e-6)


def _norm(s_snv: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(s_snv, dim=(-2, -1), keepdim=True)
    return norm


NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    # In place: a step returns a fresh tensor, and autograd then keeps one state a step, not two.
    "tanh": torch.tanh_,
    "linear": lambda s_snv: s_snv,
    "rmsnorm": _rms_norm,
    "frobnorm": _frobenius_norm,
}
"""What is applied to the new state: the norms divide a whole matrix by RMS or Frobenius norm, each
+ 1e-6 (matrix-state specification 9)."""


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
}
"""By the name that plans have for them."""


@dataclass
class Inputs:
    """What a recurrence is given: roles [b, t, h, x] and parameters [h, x] or [h], by name."""

    roles: dict[str, Tensor]
    parameters: dict[str, Tensor]

    def logit(self, number: int = 0) -> Tensor:
        """Return a gate's logit with its bias."""
        return self.roles[f"g{number}"] + self.parameters[f"p{number}"]

    def gate(self, number: int = 0) -> Tensor:
        """Return sigmoid of a gate's logit."""
        return torch.sigmoid(self.logit(number))


@dataclass(frozen=True)
class StepCall:
    """What a step takes beside k, v and q.

    Args:
        sequences: By the step's names; ``v`` here replaces the role.
        parameters: By the step's names.
        step: Name in :data:`STEPS`; None is the recurrence's own name.
    """

    sequences: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    step: str | None = None


def head_numbers(x: Inputs) -> StepCall:
    """Return the decay and the write gate that the plan gives a head, if any."""
    sequences = {name: one for name, one in x.roles.items() if name in ("decay", "write")}
    if "decay" in sequences or "decay" not in x.parameters:
        return StepCall(sequences)
    return StepCall(sequences, {"decay": x.parameters["decay"].unsqueeze(-1)})


def _row_gated(act: str) -> Callable[[Inputs], StepCall]:
    return lambda x: StepCall({"row": ACTIVATIONS[act](x.logit())}, step="decayed")


def _full_gated(act: str) -> Callable[[Inputs], StepCall]:
    return lambda x: StepCall(
        {"row": ACTIVATIONS[act](x.logit()), "column": x.roles["z"]}, step="decayed"
    )


def _scaled_read_delta(act: str) -> Callable[[Inputs], StepCall]:
    return lambda x: StepCall({"row": ACTIVATIONS[act](x.logit())}, step="delta")


def _averaged(x: Inputs) -> StepCall:
    keep_bthv = x.gate()
    return StepCall({"row": keep_bthv, "v": (1 - keep_bthv) * x.roles["v"]}, step="decayed")


def _split_edit(x: Inputs) -> StepCall:
    numbers = head_numbers(x)
    value_bthv = torch.sigmoid(x.roles["g0"]) * x.roles["v"]
    return StepCall({**numbers.sequences, "v": value_bthv}, numbers.parameters, step="delta")


def _gated_write(x: Inputs) -> StepCall:
    numbers = head_numbers(x)
    sequences = dict(numbers.sequences)
    value_bthv = torch.sigmoid(x.roles["g0"]) * x.roles["v"]
    if "write" in sequences:
        value_bthv = sequences.pop("write") * value_bthv
    return StepCall({**sequences, "v": value_bthv}, numbers.parameters, step="decayed")


def _energy_gate_of(x: Inputs) -> StepCall:
    return StepCall({}, {"slope": x.parameters["p0"], "bias": x.parameters["p1"]})


def _value_gate_of(x: Inputs) -> StepCall:
    alpha_bthv = x.gate()
    value_bthv = (1 - alpha_bthv) * x.roles["v"]
    own = {"slope": x.parameters["p1"], "bias": x.parameters["p2"]}
    return StepCall({"row": alpha_bthv, "v": value_bthv}, own)


_ROW_ACTS = ("sigmoid", "tanh", "none")
ADAPTERS: dict[str, Callable[[Inputs], StepCall]] = {
    # Relatives of the step decayed: the recurrence without a read.
    "forgetting": lambda x: StepCall({"row": torch.sigmoid(x.roles["g0"])}, step="decayed"),
    **{f"row_gated_{act}": _row_gated(act) for act in _ROW_ACTS},
    **{f"full_gated_{act}": _full_gated(act) for act in _ROW_ACTS},
    "column_gated": lambda x: StepCall({"column": x.roles["z"]}, step="decayed"),
    "averaged": _averaged,
    "gated_write": _gated_write,
    # Relatives of the step delta.
    "split_edit": _split_edit,
    "row_gated_delta": lambda x: StepCall({"decay": x.gate()}, step="delta"),
    **{f"scaled_read_delta_{act}": _scaled_read_delta(act) for act in _ROW_ACTS},
    # Steps of their own.
    "write_gated_delta": lambda x: StepCall({"write": x.gate()}),
    "error_gated_delta": lambda x: StepCall({"logit": x.logit()}),
    "state_gated_delta": _energy_gate_of,
    "retain_gated_delta": _energy_gate_of,
    "read_gated": lambda x: StepCall({"logit": x.logit()}, {"slope": x.parameters["p1"]}),
    "value_gated": _value_gate_of,
    "value_gated_inverse": _value_gate_of,
    "erase_write": lambda x: StepCall({"erase": x.gate(0), "v": x.gate(1) * x.roles["v"]}),
    "residual": lambda x: StepCall({}, {"scale": x.parameters["p0"]}),
}
"""By recurrence: the gates that its step takes, computed for all of time at once.

The last word of a name is the activation of the row gate, or ``inverse``. A recurrence that is not
here is the step of its own name with :func:`head_numbers`: ``decayed`` and ``delta``."""
