"""The Triton kernel that goes backward with two chains at once, for small tiles of few heads.

Each round walks back over a segment, and computes the states of the segment before it again.
Neither waits for the other, so the compiler mixes their steps, and a warp that is alone on its part
of the GPU has something to do while it waits. The price is registers, and one more round in all.

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.backward import (
    first_state,
    keep,
    kept_group,
    no_sums,
    output_gradients,
    room_of,
    slot,
    store_group,
    store_sums,
)
from elman.ops.matrix_state.triton.backward_steps import (
    Walk,
    chain_back,
    outputs_back,
    passed_group,
)
from elman.ops.matrix_state.triton.forward import (
    advance,
    begun,
    read_of,
    seen,
    state_at,
    store_state,
)
from elman.ops.matrix_state.triton.inputs import (
    load_group,
    load_parameters,
    prepare,
    widened_group,
)
from elman.ops.matrix_state.triton.places import (
    fetch,
    inside_tile,
    on_rows,
    opened,
    opened_gradients,
    place_of,
    wide,
)


@triton.jit
def _times(turn, segments, steps, tile: tl.constexpr):
    """Return where the groups begin that a turn computes again, and that it walks back over.

    A round has a turn for each group of a segment. There is nothing to walk in the first round and
    nothing to compute in the last: those groups begin beyond the last step, where nothing is loaded
    or stored, and gradients are zeros.
    """
    groups: tl.constexpr = tile.steps // tile.group
    segment, done = segments - 1 - turn // groups, turn % groups
    begin = segment * tile.steps + done * tile.group
    walked = (segment + 2) * tile.steps - (done + 1) * tile.group
    return tl.where(segment >= 0, begin, steps), tl.where(segment >= -1, walked, steps)


@triton.jit
def _slot_written(turn, tile: tl.constexpr):
    """Return where a turn keeps its first state: rounds take one of two halves in turn."""
    return turn % (2 * tile.steps // tile.group) * tile.group


@triton.jit
def _slot_walked(turn, tile: tl.constexpr):
    """Return where the round before kept the first state of the group that a turn walks over."""
    groups: tl.constexpr = tile.steps // tile.group
    half = 1 - turn // groups % 2
    return half * tile.steps + (groups - 1 - turn % groups) * tile.group


@triton.jit
def _recompute(
    state_rn,
    group,
    room,
    walk,
    begin,
    cell: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Keep the steps of a group from the room's step on; return the state after it."""
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        before_rn = state_rn
        state_rn = begun(before_rn, walk.resets, walk.at, begin + ahead, walk.steps)
        x = prepare(group[ahead], walk.held, spec)
        r_r = read_of(state_rn, x, group[ahead], spec)
        keep(room, ahead, before_rn, r_r, True, spec, tile)
        c_r, w_r = cell(seen(x, group[ahead], walk.held, r_r), spec)
        state_rn = advance(state_rn, c_r, w_r, x, spec)
    return state_rn


@triton.jit
def _load_checkpoint(checkpoints, segment, wanted, states, number, at, spec: tl.constexpr):
    """Return the state before a segment as it was kept, if wanted; the first has none."""
    kept = wide(tl.maximum(segment - 1, 0), at) * states + number
    from_rn, inside_rn = state_at(checkpoints, kept, at, spec)
    return tl.load(from_rn, mask=inside_rn & (segment > 0) & wanted, other=0.0)


@triton.jit(do_not_specialize=["steps", "states"])
def matrix_backward_overlapped(
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
    """Run one tile of one state back over time.

    The arguments are those of :func:`~elman.ops.matrix_state.triton.backward.matrix_backward`;
    scratch has room for the states of two segments of every program.
    """
    tl.static_assert(not spec.packs)
    at = place_of(spec, tile)
    inside, room = inside_tile(at, spec, tile), room_of(scratch, spec, tile)
    closed, dout_closed = roles, dout
    roles, grads = opened(roles, at, spec, tile), opened_gradients(grads, at, spec, tile)
    dout = None if dout is None else on_rows(dout, at, spec)
    number = at.batch * spec.heads + at.head
    held, sums = load_parameters(parameters, at, spec, tile), no_sums(spec, tile)
    zero_rn = tl.full([tile.rows, tile.columns], 0.0, tl.float32)
    state_rn, after_rn, dstate_rn = zero_rn, zero_rn, zero_rn
    start_rn = first_state(first, zero_rn, number, at, spec)
    walk = Walk(held, resets, at, inside, steps)
    segments = (steps + tile.steps - 1) // tile.steps
    groups: tl.constexpr = tile.steps // tile.group
    begin, walked = _times(0, segments, steps, tile)
    raws_ahead = load_group(roles, at, inside, begin, steps, tile)
    raws = load_group(roles, at, inside, walked, steps, tile)
    douts = output_gradients(dout, at, inside, walked, steps, tile)
    kept = kept_group(room, 0, steps < 0, tile)
    kept_rn = _load_checkpoint(checkpoints, segments - 1, True, states, number, at, spec)
    for turn in range((segments + 1) * groups):
        segment, next_turn = segments - 1 - turn // groups, turn + 1
        begin, walked = _times(turn, segments, steps, tile)
        next_begin, next_walked = _times(next_turn, segments, steps, tile)
        # Also what the walk loads, a round later.
        fetched, _ = _times(turn + 2, segments, steps, tile)
        fetch(closed, dout_closed, at, fetched, steps, spec, tile, tile.group)
        is_first, next_is_first = turn % groups == 0, next_turn % groups == 0
        if is_first:
            tl.debug_barrier()  # threads may read states that others wrote
        after_rn = tl.where(is_first, state_rn, after_rn)
        begun_rn = tl.where(segment > 0, kept_rn.to(tl.float32), start_rn)
        state_rn = tl.where(is_first, begun_rn, state_rn)
        kept_rn = _load_checkpoint(
            checkpoints, segment - 1, next_is_first, states, number, at, spec
        )
        group, pulls = widened_group(raws, tile), douts
        passed = passed_group(group, kept, after_rn, None, walk, walked, cell, spec, tile)
        after_rn = kept[0][0]
        dys, dgates = outputs_back(passed, pulls, held, spec, tile)
        group_ahead = widened_group(raws_ahead, tile)
        to = slot(room, _slot_written(turn, tile), tile)
        state_rn = _recompute(state_rn, group_ahead, to, walk, begin, cell, spec, tile)
        raws = load_group(roles, at, inside, next_walked, steps, tile)
        douts = output_gradients(dout, at, inside, next_walked, steps, tile)
        raws_ahead = load_group(roles, at, inside, next_begin, steps, tile)
        # Before the second round nothing has been kept.
        kept = kept_group(room, _slot_walked(next_turn, tile), next_turn >= groups, tile)
        dstate_rn, links = chain_back(
            dstate_rn, passed, dys, dlast, walk, walked, cell_back, spec, tile
        )
        sums = store_group(
            passed, links, dys, dgates, sums, grads, dparameters, walk, walked, spec, tile
        )
    if dfirst is not None:
        store_state(dfirst, number, at, dstate_rn, True, spec)
    store_sums(dparameters, at, sums, spec, tile)
