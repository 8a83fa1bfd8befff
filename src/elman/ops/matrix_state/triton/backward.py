"""The Triton kernels that go backward.

:func:`matrix_backward` takes segments of time from the last to the first. It computes the states of
a segment again from its checkpoint, keeps them in memory, and walks back over them.
:func:`sum_parts` adds what the row tiles of a head left of a gradient on its columns.

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
    store_rows,
    wide,
    widened_group,
)
from elman.ops.matrix_state.triton.maths import (
    activate,
    activate_back,
    self_gate,
    self_gate_slope,
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
def _no_sums(tile: tl.constexpr):
    zero_r, zero_n = tl.full([tile.rows], 0.0, tl.float32), tl.full([tile.columns], 0.0, tl.float32)
    zero = tl.sum(zero_r, 0)
    return Sums(zero_r, zero_r, zero_r, zero_r, zero_r, zero_n, zero, zero)


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
    """Return where this program keeps the state before group ``slot`` of a segment."""
    row_rn, column_rn = tl.arange(0, tile.rows)[:, None], tl.arange(0, tile.columns)[None, :]
    number = tl.program_id(0).to(tl.int64) * (tile.steps // tile.group) + slot
    return scratch + number * (tile.rows * tile.columns) + row_rn * tile.columns + column_rn


@triton.jit
def _states_of(
    state_rn,
    group,
    held,
    resets,
    at,
    begin,
    steps,
    cell: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Return the states before and after the steps of a group."""
    before, after = (), ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        before_rn = begun(state_rn, resets, at, begin + ahead, steps)
        x = prepare(group[ahead], held, spec)
        c_r, w_r = cell(seen(x, group[ahead], held, before_rn, spec), spec)
        state_rn = advance(before_rn, c_r, w_r, x, spec)
        before = before + (before_rn,)
        after = after + (state_rn,)
    return before, after


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
    """Keep the states before the groups from begin to end; return the one at the end."""
    raws = load_group(roles, at, begin, steps, spec, tile)
    for t in range(begin, end, tile.group):
        group = widened_group(raws, tile)
        raws = load_group(roles, at, t + tile.group, steps, spec, tile)
        tl.store(_room(scratch, (t - begin) // tile.group, tile), state_rn)
        _, after = _states_of(state_rn, group, held, resets, at, t, steps, cell, spec, tile)
        state_rn = after[tile.group - 1]
    return state_rn


@triton.jit
def _step_back(
    dstate_rn,
    before_rn,
    after_rn,
    dout_r,
    raw,
    x,
    held,
    sums,
    grads,
    at,
    t,
    steps,
    cell: tl.constexpr,
    cell_back: tl.constexpr,
    spec: tl.constexpr,
):
    """Store the gradients of a step; return those of the state before it and of parameters."""
    row = seen(x, raw, held, before_rn, spec)
    c_r, w_r = cell(row, spec)
    y_r = tl.sum(after_rn * x.q_n[None, :], 1)
    dy_r, dgate_r = output_back(dout_r, y_r, x, raw, held, spec)
    dq_n = tl.sum(after_rn * dy_r[:, None], 0)
    dstate_rn += dy_r[:, None] * x.q_n[None, :]
    if spec.tanh:
        dstate_rn *= 1.0 - after_rn * after_rn
    dw_r = tl.sum(dstate_rn * x.k_n[None, :], 1)
    dk_n = tl.sum(dstate_rn * w_r[:, None], 0)
    dz_n = x.k_n * 0.0
    factor_rn = c_r[:, None]
    product_rn = dstate_rn * before_rn
    if spec.column:
        dz_n = tl.sum(product_rn * factor_rn, 0)
        product_rn *= x.z_n[None, :]
        factor_rn = factor_rn * x.z_n[None, :]
    dc_r = tl.sum(product_rn, 1) if spec.scales else dw_r * 0.0
    d = cell_back(row, c_r, dc_r, dw_r, spec)
    dstate_rn *= factor_rn
    dkey_n = x.k_n * 0.0
    if spec.reads:
        dkey_n = tl.sum(before_rn * d.r[:, None], 0)
        dstate_rn += d.r[:, None] * x.key_n[None, :]
    dresidual_r = dy_r * x.v_r
    dv_r = d.v + dy_r * held.residual_r if spec.residual else d.v
    dv_r = activate_back(dv_r, raw.v_r, spec.v_act, spec.fast)
    store_rows(grads.v, at, t, steps, dv_r, spec)
    if grads.g0 is not None:
        store_rows(grads.g0, at, t, steps, d.g, spec)
    if grads.gate is not None:
        store_rows(grads.gate, at, t, steps, dgate_r, spec)
    dz_bias_n = store_columns(grads, at, t, steps, raw, held, dk_n, dq_n, dz_n, dkey_n, spec)
    ddecay, dt_bias = store_head(grads, at, t, steps, raw, x, held, d.decay, d.write, spec)
    return dstate_rn, Sums(
        sums.p0_r + d.p0,
        sums.p1_r + d.p1,
        sums.p2_r + d.p2,
        sums.residual_r + dresidual_r,
        sums.gate_bias_r + dgate_r,
        sums.z_bias_n + dz_bias_n,
        sums.decay + ddecay,
        sums.dt_bias + dt_bias,
    )


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
    cell: tl.constexpr,
    cell_back: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Go back over a segment; return the gradients of the state before it and of parameters.

    The numbers of a group, and the state before it, are loaded while the group after it is walked;
    raws, douts and state_rn are those of the last group.
    """
    for back in range(begin, last_group + 1, tile.group):
        group_begin = last_group - (back - begin)
        group = widened_group(raws, tile)
        slopes = douts
        before, after = _states_of(
            state_rn, group, held, resets, at, group_begin, steps, cell, spec, tile
        )
        next_begin = tl.maximum(group_begin - tile.group, begin)
        raws = load_group(roles, at, next_begin, steps, spec, tile)
        douts = _output_gradients(dout, at, next_begin, steps, spec, tile)
        state_rn = tl.load(_room(scratch, (next_begin - begin) // tile.group, tile))
        for behind in tl.static_range(tl.constexpr(tile.group)):
            t = group_begin + tile.group - 1 - behind
            raw = group[tile.group - 1 - behind]
            if dlast is not None:  # noqa: SIM102 (decided by the compiler, the next is not)
                if t == steps - 1:
                    dstate_rn = load_state(dlast, number, at, spec)
            dstate_rn, sums = _step_back(
                dstate_rn,
                before[tile.group - 1 - behind],
                after[tile.group - 1 - behind],
                slopes[tile.group - 1 - behind].to(tl.float32),
                raw,
                prepare(raw, held, spec),
                held,
                sums,
                grads,
                at,
                t,
                steps,
                cell,
                cell_back,
                spec,
            )
            dstate_rn = begun(dstate_rn, resets, at, t, steps)  # no gradient passes a reset
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
        tl.store(to_n, sums.z_bias_n, mask=at.column_n < spec.columns)
    if dparameters.decay is not None:
        tl.store(dparameters.decay + share, sums.decay)
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
    sums = _no_sums(tile)
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
            state_rn, scratch, roles, held, resets, at, begin, last_group, steps, cell, spec, tile
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


@triton.jit(do_not_specialize=["parts", "rows", "steps", "width"])
def sum_parts(partial, parts, grad, rows, steps, width, block: tl.constexpr):
    """Add the parts of a gradient [parts, rows, width], a row at a time, where rows are B T.

    Args:
        partial: The parts, contiguous.
        parts: How many.
        grad: Where the sum goes, a Sequence.
        rows: B T.
        steps: T.
        width: Channels of a row.
        block: Channels of a program.
    """
    row = tl.program_id(0).to(tl.int64)
    channel_c = tl.program_id(1) * block + tl.arange(0, block)
    inside_c = channel_c < width
    total_c = tl.full([block], 0.0, tl.float32)
    for part in range(parts):
        from_c = partial + ((row * 0 + part) * rows + row) * width + channel_c
        total_c += tl.load(from_c, mask=inside_c, other=0.0)
    to_c = grad.data + row // steps * grad.batch + row % steps * grad.time + channel_c
    tl.store(to_c, total_c.to(grad.data.dtype.element_ty), mask=inside_c)
