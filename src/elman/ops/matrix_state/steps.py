"""The steps of the matrix-state cells: the new state before its nonlinearity, as pure functions.

A cell is one entry of STEPS; the loop over time (reference.py) knows none of them.

Shape legend: s = batch * heads sequences, n state columns (keys), v state rows (values). The state
stands transposed, s_snv. Inside a step, what lives on columns is [s, n, 1], what lives on rows is
[s, 1, v] and a number per head is [s, 1, 1]: everything broadcasts to the state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """What the loop over time needs to know of one step.

    Args:
        run: ``run(s_snv, r_s1v, **inputs)`` returns the new state in a fresh tensor, before the
            nonlinearity. r = S k of the old state; None where ``reads`` is False.
        columns: Sequences over the columns of the state, [b, t, h, n].
        rows: Sequences over its rows, [b, t, h, v], or of one number per head, [b, t, h, 1].
        parameters: Inputs that do not change over time: [h, v], [h, 1], or [1, v, v] for a matrix
            that every head shares. A name may stand in both, and a call gives one of them.
        optional: Names among those above that a call may leave out.
        reads: Whether the step reads the old state with a key.
    """

    run: Callable[..., Tensor]
    columns: frozenset[str] = frozenset({"k"})
    rows: frozenset[str] = frozenset({"v"})
    parameters: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    reads: bool = True


def _outer(
    s_snv: Tensor,
    r_s1v: Tensor | None,
    *,
    k: Tensor,
    v: Tensor,
    row: Tensor | None = None,
    column: Tensor | None = None,
    decay: Tensor | None = None,
) -> Tensor:
    """S' = S o (row (x) column) * decay + v (x) k: E14, E70, E73, E74 ema and simple."""
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
    """S' = decay > S + write (v - row o r) (x) k: E73 to E75 delta and their kin, E88."""
    delta_s1v = v - r_s1v if row is None else torch.addcmul(v, row, r_s1v, value=-1)
    if write is not None:
        delta_s1v = delta_s1v * write
    if decay is None:
        return torch.addcmul(s_snv, k, delta_s1v)
    # Onto a fresh tensor: autograd keeps one state a step, not two.
    return (decay * s_snv).addcmul_(k, delta_s1v)


def _e71(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, logit: Tensor, slope: Tensor
) -> Tensor:
    """S' = a > S + (1 - a) > v (x) k, a = sigmoid(logit + slope o r)."""
    alpha_s1v = torch.sigmoid(torch.addcmul(logit, slope, r_s1v))
    return (alpha_s1v * s_snv).addcmul_(k, v - alpha_s1v * v)


def _e72(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, row: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """S' = row > S + (v o g) (x) k, g = sigmoid(slope o r + bias); v is already (1 - row) o v."""
    gated_s1v = v * torch.sigmoid(torch.addcmul(bias, slope, r_s1v))
    return (row * s_snv).addcmul_(k, gated_s1v)


def _e72_inverse(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, row: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """As E72 with g = sigmoid(-slope o |r| + bias)."""
    gated_s1v = v * torch.sigmoid(torch.addcmul(bias, slope, r_s1v.abs(), value=-1))
    return (row * s_snv).addcmul_(k, gated_s1v)


def _e74_retain(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """S' = S + ((1 - a) o (v - r)) (x) k, a = sigmoid(slope o mean_j S_ij^2 + bias)."""
    delta_s1v = v - r_s1v
    return torch.addcmul(s_snv, k, delta_s1v - _energy_gate(s_snv, slope, bias) * delta_s1v)


def _e74_state(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, slope: Tensor, bias: Tensor
) -> Tensor:
    """S' = S + (a o (v - r)) (x) k, a as in the retain gate."""
    return torch.addcmul(s_snv, k, _energy_gate(s_snv, slope, bias) * (v - r_s1v))


def _energy_gate(s_snv: Tensor, slope: Tensor, bias: Tensor) -> Tensor:
    energy_s1v = s_snv.square().mean(-2, keepdim=True)
    return torch.sigmoid(torch.addcmul(bias, slope, energy_s1v))


def _e74_residual(s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    """S' = S + scale > tanh((v - r) (x) k)."""
    return torch.addcmul(s_snv, scale, (k * (v - r_s1v)).tanh_())


def _e74_ntm(s_snv: Tensor, r_s1v: Tensor | None, *, k: Tensor, v: Tensor, erase: Tensor) -> Tensor:
    """S' = S o (1 - erase (x) k) + v (x) k; v is already (write gate) o v."""
    return torch.addcmul(s_snv, k, torch.addcmul(v, erase, s_snv, value=-1))


def _e74_retrieved_gate(
    s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, write: Tensor
) -> Tensor:
    """S' = S + (write o (v - r)) (x) k."""
    return torch.addcmul(s_snv, k, write * (v - r_s1v))


def _e74_error_gate(s_snv: Tensor, r_s1v: Tensor, *, k: Tensor, v: Tensor, logit: Tensor) -> Tensor:
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


_V = frozenset({"v"})
_SLOPE_BIAS = frozenset({"slope", "bias"})

STEPS: dict[str, Step] = {
    "outer": Step(
        _outer,
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
    "e71": Step(_e71, rows=_V | {"logit"}, parameters=frozenset({"slope"})),
    "e72": Step(_e72, rows=_V | {"row"}, parameters=_SLOPE_BIAS),
    "e72_inverse": Step(_e72_inverse, rows=_V | {"row"}, parameters=_SLOPE_BIAS),
    "e74_retain": Step(_e74_retain, parameters=_SLOPE_BIAS),
    "e74_state": Step(_e74_state, parameters=_SLOPE_BIAS),
    "e74_residual": Step(_e74_residual, parameters=frozenset({"scale"})),
    "e74_ntm": Step(_e74_ntm, rows=_V | {"erase"}, reads=False),
    "e74_retrieved_gate": Step(_e74_retrieved_gate, rows=_V | {"write"}),
    "e74_error_gate": Step(_e74_error_gate, rows=_V | {"logit"}),
    "e63m": Step(_e63m, rows=frozenset({"row", "input"}), parameters=frozenset({"mix"})),
}
"""Every step by name (matrix-state specification 3 to 9); a reading step also takes ``read``, the
key of the read where it differs from ``k``, and every step takes the query ``q``."""


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
