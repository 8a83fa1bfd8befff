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
    scattered_sums,
    self_gate,
    self_gate_slope,
    slope_of,
    sums_over_rows,
    unpacked,
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


class Walk(NamedTuple):
    """What is the same in all steps of a program.

    Attributes:
        held: Parameters.
        resets: Mask [B, T] of uint8, or None.
        at: What the program does.
        inside: Which of its numbers exist at every step.
        steps: T.
    """

    held: Any
    resets: Any
    at: Any
    inside: Any
    steps: Any


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
def _as_state(kept_rn, spec: tl.constexpr):
    """Return a state from how it is kept."""
    return unpacked(kept_rn) if spec.packs else kept_rn


@triton.jit
def passed_group(
    group,
    kept,
    after_rn,
    start_rn,
    walk,
    begin,
    cell: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Return the steps of a group, a :class:`Passed` each: none waits for another.

    kept are the states before them and what they read, each a tuple. start_rn is the state before
    step 0 where it may be too large for how states are kept, else None.
    """
    states, reads = kept
    passed = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        raw = group[ahead]
        x = prepare(raw, walk.held, spec)
        before_rn = _as_state(states[ahead], spec)
        if ahead == 0 and start_rn is not None:
            before_rn = tl.where(begin == 0, start_rn, before_rn)
        before_rn = begun(before_rn, walk.resets, walk.at, begin + ahead, walk.steps)
        r_r = raw.kept_read_r if spec.kept_reads else reads[ahead]
        row = seen(x, raw, walk.held, r_r)
        c_r, w_r = cell(row, spec)
        next_rn = _as_state(states[ahead + 1] if ahead + 1 < tile.group else after_rn, spec)
        passed = passed + (Passed(raw, x, row, c_r, w_r, before_rn, next_rn),)
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
    walk,
    begin,
    cell_back: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Go back over the steps of a group; return the gradient before them, and their links."""
    links, at, steps = (), walk.at, walk.steps
    for behind in tl.static_range(tl.constexpr(tile.group)):
        t = begin + tile.group - 1 - behind
        if dlast is not None:  # noqa: SIM102 (decided by the compiler, the next is not)
            if t == steps - 1:
                dstate_rn = load_state(dlast, at.batch * spec.heads + at.head, at, spec)
        one, dy_r = passed[tile.group - 1 - behind], dys[tile.group - 1 - behind]
        dstate_rn, link = _step_back(dstate_rn, one, dy_r, cell_back, spec)
        dstate_rn = begun(dstate_rn, walk.resets, at, t, steps)  # no gradient passes a reset
        links = (link,) + links
    return dstate_rn, links


@triton.jit
def _z_back(dz_rn, z_n, spec: tl.constexpr):
    """Return the gradient of z before its activation."""
    return dz_rn * slope_of(z_n, spec.z_slope) if spec.z_slope != "none" else dz_rn


@triton.jit
def _columns_back(one, link, dy_r, spec: tl.constexpr):
    """Return a step's gradients of query, key, z and the key that it reads with, in every row."""
    dq_rn = one.after_rn * dy_r[:, None]
    dk_rn = link.dsum_rn * one.w_r[:, None]
    dz_rn, dkey_rn = dk_rn * 0.0, dk_rn * 0.0
    if spec.column:
        dz_rn = link.dsum_rn * one.before_rn * one.c_r[:, None]
    if spec.reads:
        dkey_rn = one.before_rn * link.d.r[:, None]
        if spec.key == "k":
            dk_rn += dkey_rn
        elif spec.key == "zk":
            dk_rn += one.x.z_n * dkey_rn
            dz_rn += one.x.k_n * dkey_rn
    return dq_rn, dk_rn, _z_back(dz_rn, one.x.z_n, spec), dkey_rn


@triton.jit
def _sums(parts, tile: tl.constexpr):
    return scattered_sums(parts) if tile.spread else sums_over_rows(parts)


@triton.jit
def column_sums(passed, links, dys, spec: tl.constexpr, tile: tl.constexpr):
    """Return the gradients of a group's queries, keys, z and keys of reads, as they are stored.

    Each is a tuple of sums over rows, empty where the plan does not have it.
    """
    dqs, dks, dzs, dkeys = (), (), (), ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        dq_rn, dk_rn, dz_rn, dkey_rn = _columns_back(passed[ahead], links[ahead], dys[ahead], spec)
        dqs, dks, dzs, dkeys = dqs + (dq_rn,), dks + (dk_rn,), dzs + (dz_rn,), dkeys + (dkey_rn,)
    has_z: tl.constexpr = spec.column or spec.key == "zk"
    return (
        _sums(dqs, tile),
        _sums(dks, tile),
        _sums(dzs, tile) if has_z else (),
        _sums(dkeys, tile) if spec.key == "read" else (),
    )
