"""The Triton kernels that go backward.

:func:`matrix_backward` takes segments of time from the last to the first. It computes the states of
a segment again from its checkpoint, keeps them in memory, and walks back over them by groups of
steps (backward_steps.py).

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.backward_steps import (
    chain_back,
    column_sums,
    outputs_back,
    passed_group,
)
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
from elman.ops.matrix_state.triton.maths import activate_back


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
    dqs, dks, dzs, dkeys = column_sums(passed, links, dys, spec, tile)
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
        passed = passed_group(
            group, states, after_rn, held, resets, at, group_begin, steps, cell, spec, tile
        )
        dys, dgates = outputs_back(passed, douts, held, spec, tile)
        after_rn = states[0]
        next_begin = tl.maximum(group_begin - tile.group, begin)
        raws = load_group(roles, at, next_begin, steps, spec, tile)
        douts = _output_gradients(dout, at, next_begin, steps, spec, tile)
        states = _load_states(scratch, next_begin - begin, tile)
        dstate_rn, links = chain_back(
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
