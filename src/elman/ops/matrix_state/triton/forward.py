"""The Triton kernel that goes forward: a tile of rows of one state, in registers for all of time.

docs/triton.md reads it line by line.

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two. Where a tile
is folded, _rn and _n have three axes: parts of the columns, rows, columns of a part.
"""

from __future__ import annotations

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.cells import Row
from elman.ops.matrix_state.triton.inputs import (
    load_group,
    load_parameters,
    prepare,
    widened_group,
)
from elman.ops.matrix_state.triton.maths import activate, self_gate, tanh
from elman.ops.matrix_state.triton.places import fetch, inside_tile, opened, place_of, wide


@triton.jit
def state_at(pointer, number, at, spec: tl.constexpr):
    """Return where the tile of state ``number`` stands in a tensor of states, and what is in it."""
    if len(at.column_n.shape) == 1:
        row_rn, column_rn = at.row_r[:, None], at.column_n[None, :]
    else:
        row_rn, column_rn = at.row_r[None, :, None], at.column_n
    first = number * (spec.rows * spec.columns)
    inside_rn = (row_rn < spec.rows) & (column_rn < spec.columns)
    return pointer + first + row_rn * spec.columns + column_rn, inside_rn


@triton.jit
def load_state(pointer, number, at, spec: tl.constexpr):
    """Return the tile of state ``number``, in fp32 and 0 where it is padded."""
    from_rn, inside_rn = state_at(pointer, number, at, spec)
    return tl.load(from_rn, mask=inside_rn, other=0.0).to(tl.float32)


@triton.jit
def store_state(pointer, number, at, state_rn, wanted, spec: tl.constexpr):
    """Store the tile of state ``number`` if it is wanted."""
    to_rn, inside_rn = state_at(pointer, number, at, spec)
    tl.store(to_rn, state_rn.to(pointer.dtype.element_ty), mask=inside_rn & wanted)


@triton.jit
def sum_of_columns(x_rn):
    """Return the sum over the columns of a tile, folded or not: a number for each row."""
    if len(x_rn.shape) == 3:
        x_rn = tl.sum(x_rn, 0)  # inside each thread: none waits for another
    return tl.sum(x_rn, 1)


@triton.jit
def beside_columns(number_r, state_rn):
    """Return numbers of rows in a shape that multiplies the columns of a state, folded or not."""
    if len(state_rn.shape) == 3:
        return number_r[None, :, None]
    else:
        return number_r[:, None]


@triton.jit
def begun(state_rn, resets, at, t, steps):
    """Return the state that step t starts from: zeros where a document begins."""
    if resets is not None:
        reset = tl.load(resets + at.batch * steps + tl.minimum(t, steps - 1))
        state_rn = tl.where(reset != 0, 0.0, state_rn)
    return state_rn


@triton.jit
def read_of(state_rn, x, raw, spec: tl.constexpr):
    """Return what a step reads of the old state: zeros where the cell does not read it.

    Where the forward pass has kept it, no step of the backward pass waits for the sum.
    """
    if spec.kept_reads:
        return raw.kept_read_r
    elif spec.reads:
        return sum_of_columns(state_rn * x.key_n)
    else:
        return x.v_r * 0.0


@triton.jit
def seen(x, raw, held, r_r):
    """Return what the cell sees of a step that has read r."""
    return Row(x.v_r, raw.g_r, held.p0_r, held.p1_r, held.p2_r, x.decay, x.write, r_r)


@triton.jit
def advance(state_rn, c_r, w_r, x, spec: tl.constexpr):
    """Return the next state."""
    factor_rn, weight_rn = beside_columns(c_r, state_rn), beside_columns(w_r, state_rn)
    if spec.column:
        factor_rn = factor_rn * x.z_n
    state_rn = factor_rn * state_rn + weight_rn * x.k_n
    if spec.tanh:
        state_rn = tanh(state_rn, spec.fast)
    return state_rn


@triton.jit
def output_of(y_r, x, raw, held, spec: tl.constexpr):
    """Return the output from the read y: residual and gates, each where the plan has it."""
    if spec.residual:
        y_r += held.residual_r * x.v_r
    if spec.self_gate:
        y_r = self_gate(y_r, spec.fast)
    if spec.gate_act != "none":
        y_r *= activate(raw.gate_r + held.gate_bias_r, spec.gate_act, spec.fast)
    return y_r


@triton.jit
def outputs_of(out, at, t, steps, spec: tl.constexpr):
    """Return where a number for each row of step t goes, on the rows of the tile."""
    return out + ((at.batch * steps + t) * spec.heads + at.head) * spec.rows + at.row_r


@triton.jit
def store_output(to_r, y_r, inside_r):
    """Store a number for each row of a step."""
    tl.store(to_r, y_r.to(to_r.dtype.element_ty), mask=inside_r)


@triton.jit(do_not_specialize=["steps", "states"])
def matrix_forward(
    roles,
    parameters,
    first,
    last,
    out,
    checkpoints,
    reads,
    resets,
    steps,
    states,
    cell: tl.constexpr,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Run one tile of one state over all of time.

    Args:
        roles: The sequences, :class:`~elman.ops.matrix_state.triton.inputs.Roles`.
        parameters: :class:`~elman.ops.matrix_state.triton.inputs.Parameters`.
        first: State before the first step, or None.
        last: State after the last one.
        out: Output [B, T, heads, rows].
        checkpoints: States before the steps K, 2 K ..., or None.
        reads: What each step reads of the old state [B, T, heads, rows], or None.
        resets: Mask [B, T] of uint8, or None.
        steps: T.
        states: B heads.
        cell: The cell's step.
        spec: What is computed, :class:`~elman.ops.matrix_state.triton.spec.Spec`.
        tile: How, :class:`~elman.ops.matrix_state.triton.tiles.Tile`.
    """
    at = place_of(spec, tile)
    number = at.batch * spec.heads + at.head
    closed = roles
    inside, roles = inside_tile(at, spec, tile), opened(roles, at, spec, tile)
    held = load_parameters(parameters, at, spec, tile)
    last_rn, inside_rn = state_at(last, number, at, spec)
    if first is not None:
        state_rn = load_state(first, number, at, spec)
    else:
        # A load of nothing: how a tensor is loaded decides its layout, and this one's is needed in
        # every step. Zeros that are not loaded would be computed with in another layout.
        state_rn = tl.load(last_rn, mask=inside_rn & (steps < 0), other=0.0)
    raws = load_group(roles, at, inside, 0, steps, tile)
    fetch(closed, None, at, tile.group, steps, spec, tile, tile.group)
    for begin in range(0, steps, tile.group):
        fetch(closed, None, at, begin + 2 * tile.group, steps, spec, tile, tile.group)
        group = widened_group(raws, tile)
        raws = load_group(roles, at, inside, begin + tile.group, steps, tile)
        if checkpoints is not None:  # noqa: SIM102 (decided by the compiler, and the next is not)
            if (begin % tile.steps == 0) & (begin > 0):
                kept = wide(begin // tile.steps - 1, at) * states + number
                store_state(checkpoints, kept, at, state_rn, True, spec)
        outs_r = outputs_of(out, at, begin, steps, spec)
        reads_r = outputs_of(reads, at, begin, steps, spec) if reads is not None else None
        for ahead in tl.static_range(tl.constexpr(tile.group)):
            t = begin + ahead
            raw = group[ahead]
            x = prepare(raw, held, spec)
            state_rn = begun(state_rn, resets, at, t, steps)
            r_r = read_of(state_rn, x, raw, spec)
            c_r, w_r = cell(seen(x, raw, held, r_r), spec)
            state_rn = advance(state_rn, c_r, w_r, x, spec)
            y_r = output_of(sum_of_columns(state_rn * x.q_n), x, raw, held, spec)
            further, inside_r = ahead * (spec.heads * spec.rows), inside.row_r & (t < steps)
            store_output(outs_r + further, y_r, inside_r)
            if reads is not None:
                store_output(reads_r + further, r_r, inside_r)
            kept_rn = state_rn.to(last.dtype.element_ty)
            tl.store(last_rn, kept_rn, mask=inside_rn & (t == steps - 1))
