"""What the Triton kernels read and write beside the state: sequences, parameters, gradients.

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.maths import (
    activate,
    activate_back,
    mapped,
    mapped_back,
    unit,
    unit_back,
)


class Sequence(NamedTuple):
    """Where a role of the plan, or its gradient, lies.

    Number j of head h at time t of batch row b is ``data[b batch + t time + h width + j]``; row
    tile i of a head adds ``i tile`` where each tile writes a part of a gradient of its own.
    """

    data: Any
    batch: Any
    time: Any
    tile: Any = 0


class Roles(NamedTuple):
    """A :class:`Sequence` for each role that the plan has, else None."""

    v: Any = None
    g0: Any = None
    gate: Any = None
    decay: Any = None
    write: Any = None
    k: Any = None
    q: Any = None
    z: Any = None
    read: Any = None


class Parameters(NamedTuple):
    """A tensor [heads, width] or [heads] for each parameter that the plan has, else None.

    The gradients have axes before those: batch rows, and for columns and heads also row tiles.
    """

    p0: Any = None
    p1: Any = None
    p2: Any = None
    z_bias: Any = None
    decay: Any = None
    dt_bias: Any = None
    residual: Any = None
    gate_bias: Any = None


class Place(NamedTuple):
    """The part of the work that a program does."""

    batch: Any
    head: Any
    tile: Any
    row_r: Any
    column_n: Any


class Held(NamedTuple):
    """The parameters of a tile: numbers that stay in registers for all steps."""

    p0_r: Any
    p1_r: Any
    p2_r: Any
    residual_r: Any
    gate_bias_r: Any
    z_bias_n: Any
    decay: Any
    dt_bias: Any


class Raw(NamedTuple):
    """The numbers of one step as they stand in the sources."""

    v_r: Any
    g_r: Any
    gate_r: Any
    decay: Any
    write: Any
    k_n: Any
    q_n: Any
    z_n: Any
    read_n: Any


class Step(NamedTuple):
    """The numbers of one step as the recurrence takes them."""

    v_r: Any
    decay: Any
    write: Any
    k_n: Any
    q_n: Any
    z_n: Any
    key_n: Any


@triton.jit
def place_of(spec: tl.constexpr, tile: tl.constexpr):
    """Return what this program does: tiles of a head follow each other, then heads, then rows.

    The columns are said to be neighbours by fours and no more: a thread then has four columns of a
    state in every dtype, where it would have eight in bf16, and a state has one layout everywhere.
    """
    number = tl.program_id(0).to(tl.int64)
    in_batch = number // tile.row_tiles
    return Place(
        in_batch // spec.heads,
        in_batch % spec.heads,
        number % tile.row_tiles,
        (number % tile.row_tiles) * tile.rows + tl.arange(0, tile.rows),
        tl.max_contiguous(tl.arange(0, tile.columns), 4),
    )


@triton.jit
def wide(t, at):
    """Return a time in 64 bits: its product with a stride may need more than 32."""
    return at.batch * 0 + t


@triton.jit
def _numbers(sequence, at, t, inside, index, width: tl.constexpr):
    """Return numbers of a head at a time: 0 beyond its width, and where the time is not inside."""
    first = at.batch * sequence.batch + at.head * width + wide(t, at) * sequence.time
    return tl.load(sequence.data + first + index, mask=(index < width) & inside, other=0.0)


@triton.jit
def load_columns(from_n, inside_n, spread: tl.constexpr, tile: tl.constexpr):
    """Return numbers on the columns: [1, columns], or [rows, columns] where they are spread.

    Spread, every thread loads what its part of the state needs, and none asks another for it.
    """
    if spread:
        shape: tl.constexpr = [tile.rows, tile.columns]
        from_n = tl.broadcast_to(from_n[None, :], shape)
        return tl.load(from_n, mask=tl.broadcast_to(inside_n[None, :], shape), other=0.0)
    else:
        return tl.load(from_n, mask=inside_n, other=0.0)[None, :]


@triton.jit
def _on_columns(sequence, at, t, inside, width: tl.constexpr, tile: tl.constexpr):
    """Return the numbers that a head has on its columns at step t."""
    first = at.batch * sequence.batch + at.head * width + wide(t, at) * sequence.time
    from_n = sequence.data + first + at.column_n
    return load_columns(from_n, (at.column_n < width) & inside, tile.spread, tile)


@triton.jit
def _number(sequence, at, t, inside):
    """Return the number that a head has at step t."""
    first = at.batch * sequence.batch + at.head + wide(t, at) * sequence.time
    return tl.load(sequence.data + first, mask=inside, other=0.0)


@triton.jit
def _load_step(roles, at, t, steps, spec: tl.constexpr, tile: tl.constexpr):
    """Return the numbers of step t; zeros stand for what the plan does not have."""
    zero_r = tl.full([tile.rows], 0.0, tl.float32)
    zero_n = tl.full([1, tile.columns], 0.0, tl.float32)
    zero = tl.sum(zero_r, 0)
    i, rows, columns = at.row_r, spec.rows, spec.columns
    here = t < steps
    return Raw(
        _numbers(roles.v, at, t, here, i, rows),
        _numbers(roles.g0, at, t, here, i, rows) if roles.g0 is not None else zero_r,
        _numbers(roles.gate, at, t, here, i, rows) if roles.gate is not None else zero_r,
        _number(roles.decay, at, t, here) if roles.decay is not None else zero,
        _number(roles.write, at, t, here) if roles.write is not None else zero,
        _on_columns(roles.k, at, t, here, columns, tile),
        _on_columns(roles.q, at, t, here, columns, tile),
        _on_columns(roles.z, at, t, here, columns, tile) if roles.z is not None else zero_n,
        _on_columns(roles.read, at, t, here, columns, tile) if roles.read is not None else zero_n,
    )


@triton.jit
def load_group(roles, at, t, steps, spec: tl.constexpr, tile: tl.constexpr):
    """Return the numbers of the group of steps that begins at t, a :class:`Raw` each.

    They stay in the dtype of the sources: to widen one is to wait for it. Beyond the last step
    there are zeros.
    """
    raws = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        raws = raws + (_load_step(roles, at, t + ahead, steps, spec, tile),)
    return raws


@triton.jit
def _widened(raw):
    """Return the numbers of a step in fp32."""
    return Raw(
        raw.v_r.to(tl.float32),
        raw.g_r.to(tl.float32),
        raw.gate_r.to(tl.float32),
        raw.decay.to(tl.float32),
        raw.write.to(tl.float32),
        raw.k_n.to(tl.float32),
        raw.q_n.to(tl.float32),
        raw.z_n.to(tl.float32),
        raw.read_n.to(tl.float32),
    )


@triton.jit
def widened_group(raws, tile: tl.constexpr):
    """Return the numbers of a group in fp32: here a program waits for its loads."""
    wide_raws = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        wide_raws = wide_raws + (_widened(raws[ahead]),)
    return wide_raws


@triton.jit
def _row_parameter(pointer, at, spec: tl.constexpr, tile: tl.constexpr):
    if pointer is not None:
        first = at.head * spec.rows
        return tl.load(pointer + first + at.row_r, mask=at.row_r < spec.rows, other=0.0)
    else:
        return tl.full([tile.rows], 0.0, tl.float32)


@triton.jit
def _head_parameter(pointer, at, tile: tl.constexpr):
    if pointer is not None:
        return tl.load(pointer + at.head)
    else:
        return tl.sum(tl.full([tile.rows], 0.0, tl.float32), 0)


@triton.jit
def load_parameters(parameters, at, spec: tl.constexpr, tile: tl.constexpr):
    """Return the parameters of a program's tile."""
    z_bias_n = tl.full([1, tile.columns], 0.0, tl.float32)
    if parameters.z_bias is not None:
        from_n = parameters.z_bias + at.head * spec.columns + at.column_n
        z_bias_n = load_columns(from_n, at.column_n < spec.columns, tile.spread, tile)
    decay = _head_parameter(parameters.decay, at, tile)
    return Held(
        _row_parameter(parameters.p0, at, spec, tile),
        _row_parameter(parameters.p1, at, spec, tile),
        _row_parameter(parameters.p2, at, spec, tile),
        _row_parameter(parameters.residual, at, spec, tile),
        _row_parameter(parameters.gate_bias, at, spec, tile),
        z_bias_n,
        tl.exp(decay) if spec.decay == "mamba" else decay,
        _head_parameter(parameters.dt_bias, at, tile),
    )


@triton.jit
def prepare(raw, held, spec: tl.constexpr):
    """Return the numbers of a step as the recurrence takes them: what precedes the state."""
    k_n = activate(raw.k_n, spec.k_act, spec.fast)
    q_n = activate(raw.q_n, spec.q_act, spec.fast)
    if spec.k_unit:
        k_n = unit(k_n, spec.fast)
    if spec.q_unit:
        q_n = unit(q_n, spec.fast)
    z_n = activate(raw.z_n + held.z_bias_n, spec.z_act, spec.fast)
    if spec.key == "zk":
        key_n = z_n * k_n
    elif spec.key == "read":
        key_n = raw.read_n
    else:
        key_n = k_n
    return Step(
        activate(raw.v_r, spec.v_act, spec.fast),
        mapped(raw.decay, held.decay, held.dt_bias, spec.decay, spec.fast),
        mapped(raw.write, raw.write, raw.write, spec.write, spec.fast),
        k_n,
        q_n,
        z_n,
        key_n,
    )


@triton.jit
def store_rows(sequence, at, t, steps, grad_r, spec: tl.constexpr):
    """Store the gradient of a role over the tile's rows; nothing beyond the last step."""
    first = at.batch * sequence.batch + wide(t, at) * sequence.time + at.head * spec.rows
    to_r = sequence.data + first + at.row_r
    inside_r = (at.row_r < spec.rows) & (t < steps)
    tl.store(to_r, grad_r.to(sequence.data.dtype.element_ty), mask=inside_r)


@triton.jit
def store_on_columns(to_n, number_n, inside_n, tile: tl.constexpr):
    """Store numbers on the columns, [1, columns] or the same in all rows."""
    number_n = number_n.to(to_n.dtype.element_ty)
    if tile.spread:
        shape: tl.constexpr = [tile.rows, tile.columns]
        first_row_rn = tl.broadcast_to(tl.arange(0, tile.rows)[:, None] == 0, shape)
        to_n = tl.broadcast_to(to_n[None, :], shape)
        tl.store(to_n, tl.broadcast_to(number_n, shape), mask=inside_n[None, :] & first_row_rn)
    else:
        tl.store(to_n, tl.reshape(number_n, [tile.columns]), mask=inside_n)


@triton.jit
def _store_columns(sequence, at, t, steps, grad_n, spec: tl.constexpr, tile: tl.constexpr):
    first = at.batch * sequence.batch + wide(t, at) * sequence.time + at.head * spec.columns
    to_n = sequence.data + at.tile * sequence.tile + first + at.column_n
    inside_n = (at.column_n < spec.columns) & (t < steps)
    store_on_columns(to_n, grad_n, inside_n, tile)


@triton.jit
def _store_number(sequence, at, t, steps, grad):
    first = at.batch * sequence.batch + wide(t, at) * sequence.time + at.head
    to = sequence.data + at.tile * sequence.tile + first
    tl.store(to, grad.to(sequence.data.dtype.element_ty), mask=t < steps)


@triton.jit
def vector_back(grad_n, raw_n, is_unit: tl.constexpr, act: tl.constexpr, fast: tl.constexpr):
    """Return the gradient of a key or query as it stands in the source, from that of its value."""
    if is_unit:
        grad_n = unit_back(grad_n, activate(raw_n, act, fast), fast)
    return activate_back(grad_n, raw_n, act, fast)


@triton.jit
def store_columns(
    grads,
    at,
    t,
    steps,
    raw,
    held,
    dk_n,
    dq_n,
    dz_n,
    dkey_n,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Store the gradients of key, query, z and read, from those that the recurrence gave.

    Returns:
        The gradient of z before its activation: that of its bias, too.
    """
    if spec.key == "zk":
        k_n = activate(raw.k_n, spec.k_act, spec.fast)
        if spec.k_unit:
            k_n = unit(k_n, spec.fast)
        dk_n += activate(raw.z_n + held.z_bias_n, spec.z_act, spec.fast) * dkey_n
        dz_n += k_n * dkey_n
    elif spec.key == "k":
        dk_n += dkey_n
    else:
        _store_columns(grads.read, at, t, steps, dkey_n, spec, tile)
    dk_n = vector_back(dk_n, raw.k_n, spec.k_unit, spec.k_act, spec.fast)
    dq_n = vector_back(dq_n, raw.q_n, spec.q_unit, spec.q_act, spec.fast)
    _store_columns(grads.k, at, t, steps, dk_n, spec, tile)
    _store_columns(grads.q, at, t, steps, dq_n, spec, tile)
    dz_n = activate_back(dz_n, raw.z_n + held.z_bias_n, spec.z_act, spec.fast)
    if grads.z is not None:
        _store_columns(grads.z, at, t, steps, dz_n, spec, tile)
    return dz_n


@triton.jit
def store_head(grads, at, t, steps, raw, x, held, ddecay_r, dwrite_r, spec: tl.constexpr):
    """Store the gradients of decay and write gate, from those that a cell gave its rows.

    Returns:
        The gradients of the head's parameters, decay and dt_bias; that of a decay which is the
        parameter itself still on rows.
    """
    dparameter, dbias = x.decay * 0.0, x.decay * 0.0
    if spec.decay == "parameter":
        dparameter = ddecay_r
    elif spec.decay != "none":
        ddecay = tl.sum(ddecay_r, 0)
        dbias, dparameter = mapped_back(
            ddecay, raw.decay, x.decay, held.decay, held.dt_bias, spec.decay, spec.fast
        )
        if grads.decay is not None:
            _store_number(grads.decay, at, t, steps, dbias)
    if grads.write is not None:
        dwrite = tl.sum(dwrite_r, 0)
        _store_number(grads.write, at, t, steps, dwrite * x.write * (1.0 - x.write))
    return dparameter, dbias
