"""The Triton kernel of M2RNN that goes backward.

It takes segments of time from the last to the first. It computes the states of a segment again from
its checkpoint and keeps them in memory. Then it walks back over them: Z follows from the state
before a step, so that only the gradient of the state goes from step to step. The gradient of W
stays in registers until the end (matrix-state specification 13).

Shape legend: r and u rows of the state, n columns, all padded to powers of two and at least 16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.row_mix.forward import (
    GATE_FAST,
    load_head_rows,
    load_mix,
    load_step,
    mixed,
    next_state,
    place_in,
    product,
    widened,
)
from elman.ops.matrix_state.triton.forward import begun, load_state, store_state
from elman.ops.matrix_state.triton.maths import activate, activate_back
from elman.ops.matrix_state.triton.places import place_of, wide


class Held(NamedTuple):
    """What a program keeps for all steps: W, its transpose and D."""

    mix_ur: Any
    turned_ru: Any
    residual_r: Any


class MixSums(NamedTuple):
    """The gradients of W and of D, summed over time."""

    mix_ur: Any
    residual_r: Any


@triton.jit
def _room(scratch, slot, tile: tl.constexpr):
    """Return where this program keeps the state before step ``slot`` of a segment."""
    row_rn, column_rn = tl.arange(0, tile.rows)[:, None], tl.arange(0, tile.columns)[None, :]
    number = tl.program_id(0).to(tl.int64) * tile.steps + slot
    return scratch + number * (tile.rows * tile.columns) + row_rn * tile.columns + column_rn


@triton.jit
def _recompute(
    state_rn, scratch, sequences, held, resets, at, begin, end, steps, spec, tile: tl.constexpr
):
    """Keep the state before every step from begin to end, each after its reset."""
    found = load_step(sequences, at, begin, steps, spec)
    for t in range(begin, end):
        x = widened(found)
        found = load_step(sequences, at, t + 1, steps, spec)
        state_rn = begun(state_rn, resets, at, t, steps)
        tl.store(_room(scratch, t - begin, tile), state_rn)
        state_rn = next_state(state_rn, mixed(state_rn, held.turned_ru, x, spec), x)


@triton.jit
def _load_pull(dout, at, t, spec: tl.constexpr, tile: tl.constexpr):
    """Return the gradient of the output of a step."""
    if dout is not None:
        from_r = place_in(dout, at, t) + at.row_r
        return tl.load(from_r, mask=at.row_r < spec.rows, other=0.0)
    else:
        return tl.full([tile.rows], 0.0, tl.float32)


@triton.jit
def _store_numbers(sequence, at, t, grad_x, index_x, width: tl.constexpr):
    """Store the gradient of a sequence at a step."""
    to_x = place_in(sequence, at, t) + index_x
    tl.store(to_x, grad_x.to(sequence.data.dtype.element_ty), mask=index_x < width)


@triton.jit
def _step_back(
    dstate_rn, before_rn, new_rn, dout_r, x, held, sums, grads, at, t, spec: tl.constexpr
):
    """Store the gradients of a step; return those of the state before it and of W and D."""
    after_rn = next_state(before_rn, new_rn, x)
    y_r = tl.sum(after_rn * x.q_n[None, :], 1) + held.residual_r * x.v_r
    dgate_r = activate_back(dout_r * y_r, x.gate_r, "silu", GATE_FAST)
    dy_r = dout_r * activate(x.gate_r, "silu", GATE_FAST)
    dq_n = tl.sum(after_rn * dy_r[:, None], 0)
    dstate_rn += dy_r[:, None] * x.q_n[None, :]
    ddecay = tl.sum(tl.sum(dstate_rn * (before_rn - new_rn), 1), 0)
    dinner_rn = dstate_rn * ((1.0 - x.decay) * (1.0 - new_rn * new_rn))
    dk_n = tl.sum(dinner_rn * x.v_r[:, None], 0)
    dv_r = tl.sum(dinner_rn * x.k_n[None, :], 1) + held.residual_r * dy_r
    dmix_ur = product(before_rn, tl.trans(dinner_rn), sums.mix_ur, spec)
    dstate_rn = product(held.mix_ur, dinner_rn, x.decay * dstate_rn, spec)
    _store_numbers(grads.q, at, t, dq_n, at.column_n, spec.columns)
    _store_numbers(grads.k, at, t, dk_n, at.column_n, spec.columns)
    _store_numbers(grads.v, at, t, dv_r, at.row_r, spec.rows)
    _store_numbers(grads.gate, at, t, dgate_r, at.row_r, spec.rows)
    tl.store(place_in(grads.decay, at, t), ddecay)
    return dstate_rn, MixSums(dmix_ur, sums.residual_r + dy_r * x.v_r)


@triton.jit
def _walk_back(
    dstate_rn,
    scratch,
    sequences,
    held,
    sums,
    grads,
    dout,
    resets,
    at,
    begin,
    end,
    steps,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Go back over a segment; return the gradients of the state before it and of W and D.

    What a step reads is loaded while the step after it is walked.
    """
    found = load_step(sequences, at, end - 1, steps, spec)
    pull_r = _load_pull(dout, at, end - 1, spec, tile)
    state_rn = tl.load(_room(scratch, end - 1 - begin, tile))
    for back in range(begin, end):
        t = end - 1 - (back - begin)
        x, dout_r, before_rn = widened(found), pull_r.to(tl.float32), state_rn
        earlier = tl.maximum(t - 1, begin)
        found = load_step(sequences, at, earlier, steps, spec)
        pull_r = _load_pull(dout, at, earlier, spec, tile)
        state_rn = tl.load(_room(scratch, earlier - begin, tile))
        new_rn = mixed(before_rn, held.turned_ru, x, spec)
        dstate_rn, sums = _step_back(
            dstate_rn, before_rn, new_rn, dout_r, x, held, sums, grads, at, t, spec
        )
        dstate_rn = begun(dstate_rn, resets, at, t, steps)  # no gradient passes a reset
    return dstate_rn, sums


@triton.jit
def _store_sums(dmix, dresidual, number, at, sums, spec: tl.constexpr):
    """Store a program's share of the gradients of W and D."""
    row_ur, column_ur = at.row_r[:, None], at.row_r[None, :]
    inside_ur = (row_ur < spec.rows) & (column_ur < spec.rows)
    to_ur = dmix + number * (spec.rows * spec.rows) + row_ur * spec.rows + column_ur
    tl.store(to_ur, sums.mix_ur, mask=inside_ur)
    to_r = dresidual + number * spec.rows + at.row_r
    tl.store(to_r, sums.residual_r, mask=at.row_r < spec.rows)


@triton.jit(do_not_specialize=["steps", "states"])
def row_mix_backward(
    sequences,
    mix,
    residual,
    grads,
    dmix,
    dresidual,
    first,
    dfirst,
    dlast,
    dout,
    checkpoints,
    resets,
    scratch,
    steps,
    states,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Run one state back over time; other arguments are those of the forward kernel.

    Args:
        grads: Where the gradients of the sequences go, Sequences.
        dmix: Where those of W go, [B, heads, rows, rows]: each program's share.
        dresidual: Where those of D go, [B, heads, rows].
        dfirst: Where the gradient of the first state goes.
        dlast: Gradient of the last state, or None.
        dout: Gradient of the output, a HeadSequence or None.
        scratch: Room for the states of a segment, of every program, in fp32.
    """
    at = place_of(spec, tile)
    number = at.batch * spec.heads + at.head
    turned_ru, mix_ur = load_mix(mix, at, True, spec), load_mix(mix, at, False, spec)
    held = Held(mix_ur, turned_ru, load_head_rows(residual, at, spec))
    no_ur, no_r = tl.full([tile.rows, tile.rows], 0.0, tl.float32), held.residual_r * 0.0
    sums = MixSums(no_ur, no_r)
    if dlast is not None:
        dstate_rn = load_state(dlast, number, at, spec)
    else:
        dstate_rn = tl.full([tile.rows, tile.columns], 0.0, tl.float32)
    segments = (steps + tile.steps - 1) // tile.steps
    for done in range(segments):
        segment = segments - 1 - done
        begin, end = segment * tile.steps, tl.minimum((segment + 1) * tile.steps, steps)
        if segment > 0:
            state_rn = load_state(checkpoints, wide(segment - 1, at) * states + number, at, spec)
        else:
            state_rn = load_state(first, number, at, spec)
        _recompute(state_rn, scratch, sequences, held, resets, at, begin, end, steps, spec, tile)
        tl.debug_barrier()  # threads may read states that others wrote
        dstate_rn, sums = _walk_back(
            dstate_rn,
            scratch,
            sequences,
            held,
            sums,
            grads,
            dout,
            resets,
            at,
            begin,
            end,
            steps,
            spec,
            tile,
        )
        tl.debug_barrier()  # before the next segment's states are written over these
    store_state(dfirst, number, at, dstate_rn, True, spec)
    _store_sums(dmix, dresidual, number, at, sums, spec)
