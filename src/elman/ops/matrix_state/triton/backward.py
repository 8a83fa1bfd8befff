"""The Triton kernels that go backward.

:func:`matrix_backward` takes segments of time from the last to the first. It computes the states of
a segment again from its checkpoint, keeps them in memory, and walks back over them.

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.forward import (
    advance,
    begun,
    load_state,
    seen,
    store_state,
)
from elman.ops.matrix_state.triton.inputs import (
    load_group,
    load_parameters,
    place_of,
    prepare,
    store_columns,
    store_head,
    store_on_columns,
    store_rows,
    wide,
    widened_group,
)
from elman.ops.matrix_state.triton.maths import (
    activate,
    activate_back,
    self_gate,
    self_gate_slope,
    sums_over_rows,
)


class Sums(NamedTuple):
    """Gradients of parameters, summed over time."""

    p0_r: Any
    p1_r: Any
    p2_r: Any
    residual_r: Any
    gate_bias_r: Any
    z_bias_n: Any
    decay: Any
    dt_bias: Any


@triton.jit
def _no_sums(spec: tl.constexpr, tile: tl.constexpr):
    zero_r = tl.full([tile.rows], 0.0, tl.float32)
    zero_n = tl.full([tile.rows if tile.spread else 1, tile.columns], 0.0, tl.float32)
    zero = tl.sum(zero_r, 0)
    decay = zero_r if spec.decay == "parameter" else zero
    return Sums(zero_r, zero_r, zero_r, zero_r, zero_r, zero_n, decay, zero)


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


@triton.jit
def _room(scratch, slot, tile: tl.constexpr):
    """Return where this program keeps the state before step ``slot`` of a segment."""
    row_rn, column_rn = tl.arange(0, tile.rows)[:, None], tl.arange(0, tile.columns)[None, :]
    number = tl.program_id(0).to(tl.int64) * tile.steps + slot
    return scratch + number * (tile.rows * tile.columns) + row_rn * tile.columns + column_rn


@triton.jit
def _recompute(
    state_rn,
    scratch,
    roles,
    held,
    resets,
    at,
    begin,
    end,
    steps,
    cell: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Keep the states before the steps from begin to end, in whole groups; return the last."""
    raws = load_group(roles, at, begin, steps, spec, tile)
    for t in range(begin, end, tile.group):
        group = widened_group(raws, tile)
        raws = load_group(roles, at, t + tile.group, steps, spec, tile)
        for ahead in tl.static_range(tl.constexpr(tile.group)):
            tl.store(_room(scratch, t + ahead - begin, tile), state_rn)
            state_rn = begun(state_rn, resets, at, t + ahead, steps)
            x = prepare(group[ahead], held, spec)
            c_r, w_r = cell(seen(x, group[ahead], held, state_rn, spec), spec)
            state_rn = advance(state_rn, c_r, w_r, x, spec)
    return state_rn


@triton.jit
def _load_states(scratch, slot, tile: tl.constexpr):
    """Return the states before the steps of the group that begins at ``slot`` of a segment."""
    states = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        states = states + (tl.load(_room(scratch, slot + ahead, tile)),)
    return states


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
def _passed_group(
    group,
    states,
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
    """Return the steps of a group, a :class:`Passed` each: none waits for another."""
    passed = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        raw = group[ahead]
        x = prepare(raw, held, spec)
        before_rn = begun(states[ahead], resets, at, begin + ahead, steps)
        row = seen(x, raw, held, before_rn, spec)
        c_r, w_r = cell(row, spec)
        next_rn = states[ahead + 1] if ahead + 1 < tile.group else after_rn
        passed = passed + (Passed(raw, x, row, c_r, w_r, before_rn, next_rn),)
    return passed


@triton.jit
def _outputs_back(passed, douts, held, spec: tl.constexpr, tile: tl.constexpr):
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
def _step_back(dstate_rn, one, dy_r, cell_back: tl.constexpr, spec: tl.constexpr):
    """Return the gradient of the state before a step, and a :class:`Link`."""
    dsum_rn = dstate_rn + dy_r[:, None] * one.x.q_n
    if spec.tanh:
        dsum_rn *= 1.0 - one.after_rn * one.after_rn
    factor_rn = one.c_r[:, None]
    if spec.column:
        factor_rn = factor_rn * one.x.z_n
    dw_r = tl.sum(dsum_rn * one.x.k_n, 1)
    dc_r = dw_r * 0.0
    if spec.scales:
        product_rn = dsum_rn * one.before_rn
        if spec.column:
            product_rn *= one.x.z_n
        dc_r = tl.sum(product_rn, 1)
    d = cell_back(one.row, one.c_r, dc_r, dw_r, spec)
    dstate_rn = dsum_rn * factor_rn
    if spec.reads:
        dstate_rn += d.r[:, None] * one.x.key_n
    return dstate_rn, Link(d, dsum_rn)


@triton.jit
def _chain_back(
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
def _column_sums(passed, links, dys, spec: tl.constexpr, tile: tl.constexpr):
    """Return the gradients of a group's queries, keys, z and the keys that it reads with."""
    dqs, dks, dzs, dkeys = (), (), (), ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        one, link = passed[ahead], links[ahead]
        dqs = dqs + (one.after_rn * dys[ahead][:, None],)
        dks = dks + (link.dsum_rn * one.w_r[:, None],)
        if spec.column:
            dzs = dzs + (link.dsum_rn * one.before_rn * one.c_r[:, None],)
        if spec.reads:
            dkeys = dkeys + (one.before_rn * link.d.r[:, None],)
    dqs, dks = sums_over_rows(dqs), sums_over_rows(dks)
    if spec.column:
        dzs = sums_over_rows(dzs)
    if spec.reads:
        dkeys = sums_over_rows(dkeys)
    return dqs, dks, dzs, dkeys


@triton.jit
def _store_group(
    passed,
    links,
    dys,
    dgates,
    held,
    sums,
    grads,
    at,
    begin,
    steps,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Store the gradients of the steps of a group; return the sums with theirs."""
    dqs, dks, dzs, dkeys = _column_sums(passed, links, dys, spec, tile)
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        t, one, d, dy_r = begin + ahead, passed[ahead], links[ahead].d, dys[ahead]
        raw, x, dgate_r = one.raw, one.x, dgates[ahead]
        dq_n, dk_n = dqs[ahead], dks[ahead]
        dz_n = dzs[ahead] if spec.column else dk_n * 0.0
        dkey_n = dkeys[ahead] if spec.reads else dk_n * 0.0
        dv_r = d.v + dy_r * held.residual_r if spec.residual else d.v
        dv_r = activate_back(dv_r, raw.v_r, spec.v_act, spec.fast)
        store_rows(grads.v, at, t, steps, dv_r, spec)
        if grads.g0 is not None:
            store_rows(grads.g0, at, t, steps, d.g, spec)
        if grads.gate is not None:
            store_rows(grads.gate, at, t, steps, dgate_r, spec)
        dz_bias_n = store_columns(
            grads, at, t, steps, raw, held, dk_n, dq_n, dz_n, dkey_n, spec, tile
        )
        ddecay, dt_bias = store_head(grads, at, t, steps, raw, x, held, d.decay, d.write, spec)
        sums = Sums(
            sums.p0_r + d.p0,
            sums.p1_r + d.p1,
            sums.p2_r + d.p2,
            sums.residual_r + dy_r * x.v_r,
            sums.gate_bias_r + dgate_r,
            sums.z_bias_n + dz_bias_n,
            sums.decay + ddecay,
            sums.dt_bias + dt_bias,
        )
    return sums


@triton.jit
def _output_gradients(dout, at, begin, steps, spec: tl.constexpr, tile: tl.constexpr):
    """Return the gradients of the outputs of a group: zeros beyond the last step.

    Where they are zeros, and the gradient of the state is, too, a step leaves nothing in any sum.
    """
    found = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        t = begin + ahead
        if dout is not None:
            first = at.batch * dout.batch + wide(t, at) * dout.time + at.head * spec.rows
            inside_r = (at.row_r < spec.rows) & (t < steps)
            found = found + (tl.load(dout.data + first + at.row_r, mask=inside_r, other=0.0),)
        else:
            found = found + (tl.full([tile.rows], 0.0, tl.float32),)
    return found


@triton.jit
def _walk_back(
    dstate_rn,
    after_rn,
    scratch,
    raws,
    douts,
    roles,
    held,
    sums,
    grads,
    dout,
    dlast,
    resets,
    number,
    at,
    begin,
    last_group,
    steps,
    cell: tl.constexpr,
    cell_back: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Go back over a segment; return the gradients of the state before it and of parameters.

    The numbers of a group, and the states in it, are loaded while the group after it is walked;
    raws and douts are those of the last group, and after_rn is the state after it.
    """
    states = _load_states(scratch, last_group - begin, tile)
    for back in range(begin, last_group + 1, tile.group):
        group_begin = last_group - (back - begin)
        group = widened_group(raws, tile)
        passed = _passed_group(
            group, states, after_rn, held, resets, at, group_begin, steps, cell, spec, tile
        )
        dys, dgates = _outputs_back(passed, douts, held, spec, tile)
        after_rn = states[0]
        next_begin = tl.maximum(group_begin - tile.group, begin)
        raws = load_group(roles, at, next_begin, steps, spec, tile)
        douts = _output_gradients(dout, at, next_begin, steps, spec, tile)
        states = _load_states(scratch, next_begin - begin, tile)
        dstate_rn, links = _chain_back(
            dstate_rn,
            passed,
            dys,
            dlast,
            resets,
            number,
            at,
            group_begin,
            steps,
            cell_back,
            spec,
            tile,
        )
        sums = _store_group(
            passed, links, dys, dgates, held, sums, grads, at, group_begin, steps, spec, tile
        )
    return dstate_rn, sums


@triton.jit
def _store_row_sum(pointer, at, sum_r, spec: tl.constexpr):
    if pointer is not None:
        first = (at.batch * spec.heads + at.head) * spec.rows
        tl.store(pointer + first + at.row_r, sum_r, mask=at.row_r < spec.rows)


@triton.jit
def _store_sums(dparameters, at, sums, spec: tl.constexpr, tile: tl.constexpr):
    """Store a program's share of the gradients of parameters."""
    _store_row_sum(dparameters.p0, at, sums.p0_r, spec)
    _store_row_sum(dparameters.p1, at, sums.p1_r, spec)
    _store_row_sum(dparameters.p2, at, sums.p2_r, spec)
    _store_row_sum(dparameters.residual, at, sums.residual_r, spec)
    _store_row_sum(dparameters.gate_bias, at, sums.gate_bias_r, spec)
    share = (at.batch * tile.row_tiles + at.tile) * spec.heads + at.head
    if dparameters.z_bias is not None:
        to_n = dparameters.z_bias + share * spec.columns + at.column_n
        store_on_columns(to_n, sums.z_bias_n, at.column_n < spec.columns, tile)
    if dparameters.decay is not None:
        decay = tl.sum(sums.decay, 0) if spec.decay == "parameter" else sums.decay
        tl.store(dparameters.decay + share, decay)
    if dparameters.dt_bias is not None:
        tl.store(dparameters.dt_bias + share, sums.dt_bias)


@triton.jit(do_not_specialize=["steps", "states"])
def matrix_backward(
    roles,
    parameters,
    grads,
    dparameters,
    first,
    dfirst,
    dlast,
    dout,
    checkpoints,
    resets,
    scratch,
    steps,
    states,
    cell: tl.constexpr,
    cell_back: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Run one tile of one state back over time; other arguments are those of the forward kernel.

    Args:
        grads: Where gradients of the sequences go, Roles.
        dparameters: Where those of the parameters go, Parameters; each program its own share.
        dfirst: Where the gradient of the first state goes, or None.
        dlast: Gradient of the last state, or None.
        dout: Gradient of the output, a Sequence or None.
        scratch: Room for the states before the groups of a segment, of every program, in fp32.
        cell_back: The derivative of the cell's step.
    """
    at = place_of(spec, tile)
    number = at.batch * spec.heads + at.head
    held = load_parameters(parameters, at, spec, tile)
    sums = _no_sums(spec, tile)
    start_rn = tl.full([tile.rows, tile.columns], 0.0, tl.float32)
    dstate_rn = start_rn
    if first is not None:
        start_rn = load_state(first, number, at, spec)
    segments = (steps + tile.steps - 1) // tile.steps
    for done in range(segments):
        segment = segments - 1 - done
        begin, end = segment * tile.steps, tl.minimum((segment + 1) * tile.steps, steps)
        last_group = begin + (end - 1 - begin) // tile.group * tile.group
        # What the walk back begins with is loaded while the states are computed again.
        raws = load_group(roles, at, last_group, steps, spec, tile)
        douts = _output_gradients(dout, at, last_group, steps, spec, tile)
        state_rn = start_rn
        if segment > 0:
            state_rn = load_state(checkpoints, wide(segment - 1, at) * states + number, at, spec)
        state_rn = _recompute(
            state_rn, scratch, roles, held, resets, at, begin, end, steps, cell, spec, tile
        )
        tl.debug_barrier()  # threads may read states that others wrote
        dstate_rn, sums = _walk_back(
            dstate_rn,
            state_rn,
            scratch,
            raws,
            douts,
            roles,
            held,
            sums,
            grads,
            dout,
            dlast,
            resets,
            number,
            at,
            begin,
            last_group,
            steps,
            cell,
            cell_back,
            spec,
            tile,
        )
        tl.debug_barrier()  # before the next segment's states are written over these
    if dfirst is not None:
        store_state(dfirst, number, at, dstate_rn, True, spec)
    _store_sums(dparameters, at, sums, spec, tile)
