"""The Triton kernels that go backward.

:func:`matrix_backward` takes segments of time from the last to the first. It computes the states of
a segment again from its checkpoint, keeps them in memory, and walks back over them by groups of
steps (backward_steps.py). backward_overlapped.py does both at once, where tiles are small.

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.backward_steps import (
    Walk,
    chain_back,
    column_sums,
    outputs_back,
    passed_group,
)
from elman.ops.matrix_state.triton.forward import (
    advance,
    begun,
    load_state,
    read_of,
    seen,
    store_state,
)
from elman.ops.matrix_state.triton.inputs import (
    load_group,
    load_parameters,
    prepare,
    store_columns,
    store_head,
    widened_group,
)
from elman.ops.matrix_state.triton.maths import activate_back, packed
from elman.ops.matrix_state.triton.places import (
    fetch,
    from_time,
    inside_group,
    inside_sums,
    inside_tile,
    loaded,
    on_rows,
    opened,
    opened_gradients,
    place_of,
    roles_from,
    store,
    wide,
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
def no_sums(spec: tl.constexpr, tile: tl.constexpr):
    """Return sums of nothing."""
    zero_r = tl.full([tile.rows], 0.0, tl.float32)
    zero_n = tl.full([tile.rows if tile.spread else 1, tile.columns], 0.0, tl.float32)
    zero = tl.sum(zero_r, 0)
    zero_rn = tl.full([tile.rows, tile.columns], 0.0, tl.float32)
    decay = zero_rn if spec.decay == "parameter" else zero
    return Sums(zero_r, zero_r, zero_r, zero_r, zero_r, zero_n, decay, zero)


class Room(NamedTuple):
    """Where a program keeps the steps of a segment.

    Attributes:
        states: The states before them.
        reads: What they read, or None: the cell reads nothing, or the forward pass has kept it.
    """

    states: Any
    reads: Any


@triton.jit
def room_of(scratch, spec: tl.constexpr, tile: tl.constexpr):
    """Return where this program keeps the first step of a segment."""
    pack: tl.constexpr = 2 if spec.packs else 1
    width: tl.constexpr = tile.columns // pack
    # As `neighbours`: a thread packs the columns that it has.
    column_n = tl.max_contiguous(tl.arange(0, width), 4 // pack)
    row_r = tl.arange(0, tile.rows)
    first = tl.program_id(0).to(tl.int64) * (tile.kept_steps * tile.rows)
    return Room(
        scratch.states + first * width + row_r[:, None] * width + column_n[None, :],
        scratch.reads + first + row_r if scratch.reads is not None else None,
    )


@triton.jit
def slot(room, step, tile: tl.constexpr):
    """Return where it keeps a step of a segment."""
    return Room(
        room.states + step * (tile.rows * room.states.shape[1]),
        room.reads + step * tile.rows if room.reads is not None else None,
    )


@triton.jit
def as_kept(state_rn, spec: tl.constexpr):
    """Return a state as states are kept."""
    return packed(state_rn) if spec.packs else state_rn


@triton.jit
def keep(room, ahead: tl.constexpr, state_rn, r_r, wanted, spec: tl.constexpr, tile: tl.constexpr):
    """Keep the state before a step, so many after the room's, and what it reads.

    Returns:
        The state as it is kept.
    """
    to, kept_rn = slot(room, ahead, tile), as_kept(state_rn, spec)
    tl.store(to.states, kept_rn, mask=wanted)
    if to.reads is not None:
        tl.store(to.reads, r_r, mask=wanted)
    return kept_rn


@triton.jit
def kept_group(room, step, wanted, tile: tl.constexpr):
    """Return the states before the steps of the group from a step on, and what these read.

    They are zeros if not wanted. Zeros that are no load would cost instructions in a loop.
    """
    begin, states, reads = slot(room, step, tile), (), ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        at = slot(begin, ahead, tile)
        states = states + (tl.load(at.states, mask=wanted, other=0),)
        if room.reads is not None:
            reads = reads + (tl.load(at.reads, mask=wanted, other=0.0),)
        else:
            reads = reads + (tl.full([tile.rows], 0.0, tl.float32),)
    return states, reads


@triton.jit
def first_state(first, zero_rn, number, at, spec: tl.constexpr):
    """Return the state before the first step: zeros where the caller gave none."""
    start_rn = zero_rn
    if first is not None:
        start_rn = load_state(first, number, at, spec)
    return start_rn


@triton.jit
def _state_before(segment, start_rn, checkpoints, states, number, at, spec: tl.constexpr):
    """Return the state before a segment; that before the first one was not kept."""
    state_rn = start_rn
    if segment > 0:
        state_rn = load_state(checkpoints, wide(segment - 1, at) * states + number, at, spec)
    return state_rn


@triton.jit
def _recompute(
    state_rn,
    room,
    roles,
    walk,
    begin,
    last_group,
    cell: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Compute the states of a segment, whole groups, and keep what comes before the last group.

    Returns:
        The state after it, and what would be kept of its last group.
    """
    raws = load_group(roles, walk.at, walk.inside, begin, walk.steps, tile)
    kept = kept_group(room, 0, begin < 0, tile)
    for t in range(begin, last_group + 1, tile.group):
        group = widened_group(raws, tile)
        raws = load_group(roles, walk.at, walk.inside, t + tile.group, walk.steps, tile)
        to, states, reads = slot(room, t - begin, tile), (), ()
        for ahead in tl.static_range(tl.constexpr(tile.group)):
            before_rn = state_rn
            state_rn = begun(before_rn, walk.resets, walk.at, t + ahead, walk.steps)
            x = prepare(group[ahead], walk.held, spec)
            r_r = read_of(state_rn, x, group[ahead], spec)
            before_rn = keep(to, ahead, before_rn, r_r, t < last_group, spec, tile)
            states, reads = states + (before_rn,), reads + (r_r,)
            c_r, w_r = cell(seen(x, group[ahead], walk.held, r_r), spec)
            state_rn = advance(state_rn, c_r, w_r, x, spec)
        kept = (states, reads)
    return as_kept(state_rn, spec), kept


@triton.jit
def _of_z_bias(sum_n, dzs, insides):
    for part in tl.static_range(len(dzs)):
        sum_n += tl.where(insides[part], dzs[part], 0.0)
    return sum_n


@triton.jit
def store_group(
    passed,
    links,
    dys,
    dgates,
    sums,
    grads,
    dparameters,
    walk,
    begin,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Store the gradients of the steps of a group from begin on; return the sums with theirs.

    grads are those of step 0.
    """
    held, steps = walk.held, walk.steps
    grads, insides = (
        roles_from(grads, walk.at, begin),
        inside_group(walk.inside, begin, steps, tile),
    )
    of_columns = column_sums(passed, links, dys, spec, tile)
    columns = inside_sums(walk.inside, begin, steps, tile)
    store_columns(grads, of_columns, columns, tile)
    z_bias_n = sums.z_bias_n
    if dparameters.z_bias is not None:
        z_bias_n = _of_z_bias(z_bias_n, of_columns[2], columns)
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        one, d, dy_r, inside = passed[ahead], links[ahead].d, dys[ahead], insides[ahead]
        raw, x, dgate_r = one.raw, one.x, dgates[ahead]
        dv_r = d.v + dy_r * held.residual_r if spec.residual else d.v
        dv_r = activate_back(dv_r, raw.v_r, spec.v_act, spec.fast)
        store(grads.v, ahead, dv_r, inside.row_r)
        if grads.g0 is not None:
            store(grads.g0, ahead, d.g, inside.row_r)
        if grads.gate is not None:
            store(grads.gate, ahead, dgate_r, inside.row_r)
        ddecay, dt_bias = store_head(grads, ahead, inside, raw, x, held, d.decay, d.write, spec)
        sums = Sums(
            sums.p0_r + d.p0 if dparameters.p0 is not None else sums.p0_r,
            sums.p1_r + d.p1 if dparameters.p1 is not None else sums.p1_r,
            sums.p2_r + d.p2 if dparameters.p2 is not None else sums.p2_r,
            sums.residual_r + dy_r * x.v_r if spec.residual else sums.residual_r,
            sums.gate_bias_r + dgate_r if dparameters.gate_bias is not None else sums.gate_bias_r,
            z_bias_n,
            sums.decay + ddecay if dparameters.decay is not None else sums.decay,
            sums.dt_bias + dt_bias if dparameters.dt_bias is not None else sums.dt_bias,
        )
    return sums


@triton.jit
def output_gradients(dout, at, inside, begin, steps, tile: tl.constexpr):
    """Return the gradients of the outputs of a group: zeros beyond the last step.

    Where they are zeros, and the gradient of the state is, too, a step leaves nothing in any sum.
    """
    found = ()
    if dout is not None:
        here, insides = from_time(dout, at, begin), inside_group(inside, begin, steps, tile)
        for ahead in tl.static_range(tl.constexpr(tile.group)):
            found = found + (loaded(here, ahead, insides[ahead].row_r),)
    else:
        for _ in tl.static_range(tl.constexpr(tile.group)):
            found = found + (tl.full([tile.rows], 0.0, tl.float32),)
    return found


@triton.jit
def _walk_back(
    dstate_rn,
    after_rn,
    kept,
    start_rn,
    room,
    ahead,
    roles,
    sums,
    grads,
    dparameters,
    dout,
    dlast,
    walk,
    begin,
    last_group,
    cell: tl.constexpr,
    cell_back: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Go back over a segment.

    The numbers of a group, and what was kept of it, are loaded while the group after it is walked;
    kept and ahead (its numbers, and gradients of its outputs) are those of the last group, and
    after_rn is the state after it. start_rn is the state before step 0 if packing may not keep it,
    else None.

    Returns:
        The gradients of the state before the segment and of parameters.
    """
    raws, douts = ahead
    at, inside, steps = walk.at, walk.inside, walk.steps
    for back in range(begin, last_group + 1, tile.group):
        group_begin = last_group - (back - begin)
        group = widened_group(raws, tile)
        passed = passed_group(group, kept, after_rn, start_rn, walk, group_begin, cell, spec, tile)
        dys, dgates = outputs_back(passed, douts, walk.held, spec, tile)
        after_rn = kept[0][0]
        next_begin = tl.maximum(group_begin - tile.group, begin)
        raws = load_group(roles, at, inside, next_begin, steps, tile)
        douts = output_gradients(dout, at, inside, next_begin, steps, tile)
        kept = kept_group(room, next_begin - begin, True, tile)
        dstate_rn, links = chain_back(
            dstate_rn, passed, dys, dlast, walk, group_begin, cell_back, spec, tile
        )
        sums = store_group(
            passed, links, dys, dgates, sums, grads, dparameters, walk, group_begin, spec, tile
        )
    return dstate_rn, sums


@triton.jit
def _store_row_sum(pointer, at, sum_r, spec: tl.constexpr):
    if pointer is not None:
        first = (at.batch * spec.heads + at.head) * spec.rows
        tl.store(pointer + first + at.row_r, sum_r, mask=at.row_r < spec.rows)


@triton.jit
def store_sums(dparameters, at, sums, spec: tl.constexpr, tile: tl.constexpr):
    """Store a program's share of the gradients of parameters."""
    _store_row_sum(dparameters.p0, at, sums.p0_r, spec)
    _store_row_sum(dparameters.p1, at, sums.p1_r, spec)
    _store_row_sum(dparameters.p2, at, sums.p2_r, spec)
    _store_row_sum(dparameters.residual, at, sums.residual_r, spec)
    _store_row_sum(dparameters.gate_bias, at, sums.gate_bias_r, spec)
    share = (at.batch * tile.row_tiles + at.tile) * spec.heads + at.head
    if dparameters.z_bias is not None:
        to_n = dparameters.z_bias + share * spec.columns + at.column_n
        tl.store(to_n, tl.sum(sums.z_bias_n, 0), mask=at.column_n < spec.columns)
    if dparameters.decay is not None:
        decay = tl.sum(sums.decay) if spec.decay == "parameter" else sums.decay
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
        scratch: A :class:`Room` for the steps of a segment of every program.
        cell_back: The derivative of the cell's step.
    """
    at = place_of(spec, tile)
    inside, room = inside_tile(at, spec, tile), room_of(scratch, spec, tile)
    closed, dout_closed = roles, dout
    roles, grads = opened(roles, at, spec, tile), opened_gradients(grads, at, spec, tile)
    dout = None if dout is None else on_rows(dout, at, spec)
    number = at.batch * spec.heads + at.head
    held, sums = load_parameters(parameters, at, spec, tile), no_sums(spec, tile)
    dstate_rn = tl.full([tile.rows, tile.columns], 0.0, tl.float32)
    start_rn = first_state(first, dstate_rn, number, at, spec)
    wide_start_rn = start_rn if spec.packs and first is not None else None
    segments = (steps + tile.steps - 1) // tile.steps
    walk = Walk(held, resets, at, inside, steps)
    for done in range(segments):
        segment = segments - 1 - done
        begin, end = segment * tile.steps, tl.minimum((segment + 1) * tile.steps, steps)
        last = begin + (end - 1 - begin) // tile.group * tile.group
        before = tl.maximum(begin - tile.steps, 0)
        fetch(closed, dout_closed, at, before, steps, spec, tile, tile.steps)
        # What the walk back begins with is loaded while the states are computed again.
        raws = load_group(roles, at, inside, last, steps, tile)
        douts = output_gradients(dout, at, inside, last, steps, tile)
        state_rn = _state_before(segment, start_rn, checkpoints, states, number, at, spec)
        after_rn, kept = _recompute(state_rn, room, roles, walk, begin, last, cell, spec, tile)
        tl.debug_barrier()  # threads may read states that others wrote
        dstate_rn, sums = _walk_back(
            dstate_rn,
            after_rn,
            kept,
            wide_start_rn,
            room,
            (raws, douts),
            roles,
            sums,
            grads,
            dparameters,
            dout,
            dlast,
            walk,
            begin,
            last,
            cell,
            cell_back,
            spec,
            tile,
        )
        tl.debug_barrier()  # before the next segment's states are written over these
    if dfirst is not None:
        store_state(dfirst, number, at, dstate_rn, True, spec)
    store_sums(dparameters, at, sums, spec, tile)
