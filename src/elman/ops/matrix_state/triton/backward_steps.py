"""A group of steps, taken back: what :func:`matrix_backward` computes and does not load or store.

The chain of gradients from step to step is one phase, and what does not need it others: the
compiler then mixes the steps of a group.

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.forward import begun, load_state, seen
from elman.ops.matrix_state.triton.inputs import prepare
from elman.ops.matrix_state.triton.maths import (
    activate,
    activate_back,
    self_gate,
    self_gate_slope,
    sums_over_rows,
)


@triton.jit
def output_back(dout_r, y_r, x, raw, held, spec: tl.constexpr):
    """Return the gradients of the read with its residual, and of the gate's logit."""
    dgate_r = dout_r * 0.0
    if spec.residual:
        y_r += held.residual_r * x.v_r
    if spec.gate_act != "none":
        logit_r = raw.gate_r + held.gate_bias_r
        gated_r = self_gate(y_r, spec.fast) if spec.self_gate else y_r
        dgate_r = activate_back(dout_r * gated_r, logit_r, spec.gate_act, spec.fast)
        dout_r *= activate(logit_r, spec.gate_act, spec.fast)
    if spec.self_gate:
        dout_r *= self_gate_slope(y_r, spec.fast)
    return dout_r, dgate_r


class Passed(NamedTuple):
    """A step as it went forward.

    Attributes:
        raw: Its numbers as they stand in the sources.
        x: As the recurrence takes them.
        row: What the cell saw.
        c_r: Factor of the rows.
        w_r: Weight of the key.
        before_rn: State before the step.
        after_rn: State after it.
    """

    raw: Any
    x: Any
    row: Any
    c_r: Any
    w_r: Any
    before_rn: Any
    after_rn: Any


@triton.jit
def passed_group(
    group,
    kept,
    after_rn,
    held,
    resets,
    at,
    begin,
    steps,
    cell: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Return the steps of a group, a :class:`Passed` each: none waits for another.

    kept are the states before them and what they read, each a tuple.
    """
    states, reads = kept
    passed = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        raw = group[ahead]
        x = prepare(raw, held, spec)
        before_rn = begun(states[ahead].to(tl.float32), resets, at, begin + ahead, steps)
        row = seen(x, raw, held, reads[ahead])
        c_r, w_r = cell(row, spec)
        next_rn = states[ahead + 1] if ahead + 1 < tile.group else after_rn
        passed = passed + (Passed(raw, x, row, c_r, w_r, before_rn, next_rn.to(tl.float32)),)
    return passed


@triton.jit
def outputs_back(passed, douts, held, spec: tl.constexpr, tile: tl.constexpr):
    """Return the gradients of the reads of a group, and of the gates' logits."""
    dys, dgates = (), ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        one = passed[ahead]
        y_r = tl.sum(one.after_rn * one.x.q_n, 1)
        dout_r = douts[ahead].to(tl.float32)
        dy_r, dgate_r = output_back(dout_r, y_r, one.x, one.raw, held, spec)
        dys, dgates = dys + (dy_r,), dgates + (dgate_r,)
    return dys, dgates


class Link(NamedTuple):
    """What the chain of gradients leaves at a step.

    Attributes:
        d: Gradient of what the cell saw.
        dsum_rn: Gradient of c S + w k.
    """

    d: Any
    dsum_rn: Any


@triton.jit
def _factor_back(dsum_rn, one, spec: tl.constexpr):
    """Return the gradient of the rows' factor c.

    Where c is the head's decay, it is the sum of the tile; where that is a parameter, which all
    steps share, it is left unsummed.
    """
    dc = one.c_r * 0.0
    if spec.scales:
        dc_rn = dsum_rn * one.before_rn
        if spec.column:
            dc_rn *= one.x.z_n
        if not spec.decays:
            dc = tl.sum(dc_rn, 1)
        elif spec.decay == "parameter":
            dc = dc_rn
        else:
            dc = tl.sum(dc_rn)
    return dc


@triton.jit
def _step_back(dstate_rn, one, dy_r, cell_back: tl.constexpr, spec: tl.constexpr):
    """Return the gradient of the state before a step, and a :class:`Link`."""
    dsum_rn = dstate_rn + dy_r[:, None] * one.x.q_n
    if spec.tanh:
        dsum_rn *= 1.0 - one.after_rn * one.after_rn
    factor_rn = one.c_r[:, None]
    if spec.column:
        factor_rn = factor_rn * one.x.z_n
    dw_r = tl.sum(dsum_rn * one.x.k_n, 1)
    d = cell_back(one.row, one.c_r, _factor_back(dsum_rn, one, spec), dw_r, spec)
    dstate_rn = dsum_rn * factor_rn
    if spec.reads:
        dstate_rn += d.r[:, None] * one.x.key_n
    return dstate_rn, Link(d, dsum_rn)


@triton.jit
def chain_back(
    dstate_rn,
    passed,
    dys,
    dlast,
    resets,
    number,
    at,
    begin,
    steps,
    cell_back: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Go back over the steps of a group; return the gradient before them, and their links."""
    links = ()
    for behind in tl.static_range(tl.constexpr(tile.group)):
        t = begin + tile.group - 1 - behind
        if dlast is not None:  # noqa: SIM102 (decided by the compiler, the next is not)
            if t == steps - 1:
                dstate_rn = load_state(dlast, number, at, spec)
        one, dy_r = passed[tile.group - 1 - behind], dys[tile.group - 1 - behind]
        dstate_rn, link = _step_back(dstate_rn, one, dy_r, cell_back, spec)
        dstate_rn = begun(dstate_rn, resets, at, t, steps)  # no gradient passes a reset
        links = (link,) + links
    return dstate_rn, links


@triton.jit
def column_sums(passed, links, dys, spec: tl.constexpr, tile: tl.constexpr):
    """Return the gradients of a group's queries, keys, z and the keys that it reads with.

    Where it reads with its keys themselves, their gradient is in that of the keys.
    """
    dqs, dks, dzs, dkeys = (), (), (), ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        one, link = passed[ahead], links[ahead]
        dqs = dqs + (one.after_rn * dys[ahead][:, None],)
        dk_rn = link.dsum_rn * one.w_r[:, None]
        if spec.reads:
            dkey_rn = one.before_rn * link.d.r[:, None]
            if spec.key == "k":
                dk_rn += dkey_rn
            else:
                dkeys = dkeys + (dkey_rn,)
        dks = dks + (dk_rn,)
        if spec.column:
            dzs = dzs + (link.dsum_rn * one.before_rn * one.c_r[:, None],)
    dqs, dks = sums_over_rows(dqs), sums_over_rows(dks)
    if spec.column:
        dzs = sums_over_rows(dzs)
    if spec.reads and spec.key != "k":
        dkeys = sums_over_rows(dkeys)
    return dqs, dks, dzs, dkeys
