"""The cells of the Triton kernels: one function each, and its derivative.

A cell is the rule of one row of the state, as in csrc/cells/matrix_state.h and with the same names.
From what the row sees follow the factor c of its old elements and the weight w of its key:

    S'_ij = phi(c_i [z_j] S_ij + w_i k_j)

The kernels own time, memory, sums, masks and phi. To add a cell, write its two functions and name
them in :data:`CELLS`.

Everything here is on the rows of a tile, or one number of the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.maths import activate, sigmoid, slope_of


class Row(NamedTuple):
    """What a row sees at one step.

    Attributes:
        v: Value, activated.
        g: Gate logit of the row.
        p0: Parameter of the row, the same at every step.
        p1: As p0.
        p2: As p0.
        decay: Of the head, mapped; 1 where the cell has none.
        write: As decay.
        r: Read of the old state.
    """

    v: Any
    g: Any
    p0: Any
    p1: Any
    p2: Any
    decay: Any
    write: Any
    r: Any


class RowGrad(NamedTuple):
    """Its gradient; a cell names what it uses."""

    v: Any = 0.0
    g: Any = 0.0
    p0: Any = 0.0
    p1: Any = 0.0
    p2: Any = 0.0
    decay: Any = 0.0
    write: Any = 0.0
    r: Any = 0.0


# ---- w = v: E70 and E73 ----


@triton.jit
def decayed(x, spec: tl.constexpr):
    """c = decay."""
    return tl.broadcast_to(x.decay, x.v.shape), x.v


@triton.jit
def decayed_back(x, c, dc, dw, spec: tl.constexpr):
    """Return the gradient of :func:`decayed`."""
    return RowGrad(v=dw, decay=dc)


@triton.jit
def row_gated(x, spec: tl.constexpr):
    """c = kind(g + p0)."""
    return activate(x.g + x.p0, spec.kind, spec.fast), x.v


@triton.jit
def row_gated_back(x, c, dc, dw, spec: tl.constexpr):
    """Return the gradient of :func:`row_gated`."""
    dlogit = dc * slope_of(c, spec.kind)
    return RowGrad(v=dw, g=dlogit, p0=dlogit)


@triton.jit
def column_gated(x, spec: tl.constexpr):
    """c = 1: the columns' z_j alone scale the state."""
    return tl.full(x.v.shape, 1.0, tl.float32), x.v


@triton.jit
def column_gated_back(x, c, dc, dw, spec: tl.constexpr):
    """Return the gradient of :func:`column_gated`."""
    return RowGrad(v=dw)


# ---- the delta rule, w from v - r: E88 and E73cp ----


@triton.jit
def delta(x, spec: tl.constexpr):
    """c = decay, w = write (v - r)."""
    return tl.broadcast_to(x.decay, x.v.shape), x.write * (x.v - x.r)


@triton.jit
def delta_back(x, c, dc, dw, spec: tl.constexpr):
    """Return the gradient of :func:`delta`."""
    dv = x.write * dw
    return RowGrad(v=dv, decay=dc, write=dw * (x.v - x.r), r=-dv)


@triton.jit
def scaled_read_delta(x, spec: tl.constexpr):
    """c = 1, w = v - kind(g + p0) r."""
    one = tl.full(x.v.shape, 1.0, tl.float32)
    return one, x.v - activate(x.g + x.p0, spec.kind, spec.fast) * x.r


@triton.jit
def scaled_read_delta_back(x, c, dc, dw, spec: tl.constexpr):
    """Return the gradient of :func:`scaled_read_delta`."""
    a = activate(x.g + x.p0, spec.kind, spec.fast)
    dlogit = -dw * x.r * slope_of(a, spec.kind)
    return RowGrad(v=dw, g=dlogit, p0=dlogit, r=-dw * a)


# ---- gates that read the state: E71 and E72 ----


@triton.jit
def read_gated(x, spec: tl.constexpr):
    """c = a, w = (1 - a) v, a = sigmoid(g + p0 + p1 r)."""
    a = sigmoid(x.g + x.p0 + x.p1 * x.r, spec.fast)
    return a, x.v - a * x.v  # one operation behind a


@triton.jit
def read_gated_back(x, c, dc, dw, spec: tl.constexpr):
    """Return the gradient of :func:`read_gated`."""
    # dc and dw wait for the step after this one: they are multiplied by what is ready.
    da, slope = dc - x.v * dw, c * (1.0 - c)
    dlogit = da * slope
    return RowGrad(v=(1.0 - c) * dw, g=dlogit, p0=dlogit, p1=dlogit * x.r, r=da * (slope * x.p1))


@triton.jit
def _value_gate(x, spec: tl.constexpr):
    r = -tl.abs(x.r) if spec.kind == "inverse" else x.r
    return sigmoid(x.p2 + x.p1 * r, spec.fast)


@triton.jit
def value_gated(x, spec: tl.constexpr):
    """c = a, w = (1 - a) v b, a = sigmoid(g + p0), b = sigmoid(p1 r + p2), or p2 - p1 |r|."""
    a = sigmoid(x.g + x.p0, spec.fast)
    return a, (1.0 - a) * x.v * _value_gate(x, spec)


@triton.jit
def value_gated_back(x, c, dc, dw, spec: tl.constexpr):
    """Return the gradient of :func:`value_gated`."""
    b = _value_gate(x, spec)
    # dc and dw wait for the step after this one: they are multiplied by what is ready.
    logit_by_w = (1.0 - c) * x.v * b * (1.0 - b)
    slope, read_by_w = x.r, logit_by_w * x.p1
    if spec.kind == "inverse":
        slope = -tl.abs(x.r)
        read_by_w *= tl.where(x.r > 0.0, -1.0, tl.where(x.r < 0.0, 1.0, 0.0))
    dgate = (dc - dw * (x.v * b)) * (c * (1.0 - c))
    return RowGrad(
        v=dw * ((1.0 - c) * b),
        g=dgate,
        p0=dgate,
        p1=dw * (logit_by_w * slope),
        p2=dw * logit_by_w,
        r=dw * read_by_w,
    )


@dataclass(frozen=True)
class TritonCell:
    """A cell of the Triton kernels.

    Args:
        step: ``step(x, spec)`` returns c and w for what rows see, a :class:`Row`.
        back: ``back(x, c, dc, dw, spec)`` returns the gradient of what they saw, a
            :class:`RowGrad`, from those of c and w.
        kind: What relatives that share the functions differ in: an activation, or ``inverse``.
    """

    step: Callable[..., Any]
    back: Callable[..., Any]
    kind: str = ""


_ACTS = ("sigmoid", "tanh", "none")
CELLS: dict[str, TritonCell] = {
    "decayed": TritonCell(decayed, decayed_back),
    **{f"row_gated_{act}": TritonCell(row_gated, row_gated_back, act) for act in _ACTS},
    **{f"full_gated_{act}": TritonCell(row_gated, row_gated_back, act) for act in _ACTS},
    "column_gated": TritonCell(column_gated, column_gated_back),
    "delta": TritonCell(delta, delta_back),
    **{
        f"scaled_read_delta_{act}": TritonCell(scaled_read_delta, scaled_read_delta_back, act)
        for act in _ACTS
    },
    "read_gated": TritonCell(read_gated, read_gated_back),
    "value_gated": TritonCell(value_gated, value_gated_back),
    "value_gated_inverse": TritonCell(value_gated, value_gated_back, "inverse"),
}
"""By the name that plans use (:data:`elman.ops.matrix_state.recurrences.CELLS`)."""
