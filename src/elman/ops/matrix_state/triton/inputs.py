"""What the Triton kernels read and write beside the state: numbers, parameters, gradients.

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
from elman.ops.matrix_state.triton.places import (
    as_stored,
    inside_group,
    loaded,
    on_columns,
    roles_from,
    store,
)


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
    kept_read_r: Any


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
def _rows(sequence, ahead: tl.constexpr, inside, tile: tl.constexpr):
    if sequence is not None:
        return loaded(sequence, ahead, inside.row_r)
    else:
        return tl.full([tile.rows], 0.0, tl.float32)


@triton.jit
def _columns(sequence, ahead: tl.constexpr, inside, tile: tl.constexpr):
    if sequence is None:
        return tl.full([1, tile.columns], 0.0, tl.float32)
    elif tile.spread:
        return loaded(sequence, ahead, inside.column_n)
    else:
        return loaded(sequence, ahead, inside.column_n)[None, :]


@triton.jit
def _number(sequence, ahead: tl.constexpr, inside, tile: tl.constexpr):
    if sequence is not None:
        return loaded(sequence, ahead, inside.here)
    else:
        return tl.sum(tl.full([tile.rows], 0.0, tl.float32), 0)


@triton.jit
def load_group(roles, at, inside, t, steps, tile: tl.constexpr):
    """Return the numbers of the group of steps that begins at t, a :class:`Raw` each.

    They stay in the dtype of the sources: to widen one is to wait for it. Zeros stand for what the
    plan does not have, and beyond the last step.

    Args:
        roles: Opened :class:`~elman.ops.matrix_state.triton.places.Roles`.
        at: What the program does.
        inside: Which of its numbers exist.
        t: First step.
        steps: T.
        tile: The tile of the program.
    """
    here, raws = roles_from(roles, at, t), ()
    insides = inside_group(inside, t, steps, tile)
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        one = insides[ahead]
        raw = Raw(
            _rows(here.v, ahead, one, tile),
            _rows(here.g0, ahead, one, tile),
            _rows(here.gate, ahead, one, tile),
            _number(here.decay, ahead, one, tile),
            _number(here.write, ahead, one, tile),
            _columns(here.k, ahead, one, tile),
            _columns(here.q, ahead, one, tile),
            _columns(here.z, ahead, one, tile),
            _columns(here.read, ahead, one, tile),
            _rows(here.kept_read, ahead, one, tile),
        )
        raws = raws + (raw,)
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
        raw.kept_read_r.to(tl.float32),
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
    z_bias_n = None
    if parameters.z_bias is not None:
        from_n = parameters.z_bias + at.head * spec.columns + on_columns(at.column_n, tile)
        inside_n = on_columns(at.column_n < spec.columns, tile)
        z_bias_n = tl.load(from_n, mask=inside_n, other=0.0)
        if not tile.spread:
            z_bias_n = z_bias_n[None, :]
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
    z_n = raw.z_n
    if held.z_bias_n is not None:
        z_n += held.z_bias_n
    z_n = activate(z_n, spec.z_act, spec.fast)
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
def vector_back(grad_n, raw_n, is_unit: tl.constexpr, act: tl.constexpr, fast: tl.constexpr):
    """Return the gradient of a key or query as it stands in the source, from that of its value."""
    if is_unit:
        grad_n = unit_back(grad_n, activate(raw_n, act, fast), fast)
    return activate_back(grad_n, raw_n, act, fast)


@triton.jit
def _store_sums(sequence, sums, insides, tile: tl.constexpr):
    steps: tl.constexpr = tile.group // len(sums)
    for part in tl.static_range(len(sums)):
        store(sequence, part * steps, as_stored(sums[part], tile), insides[part])


@triton.jit
def store_columns(grads, sums, insides, tile: tl.constexpr):
    """Store the gradients of queries, keys, z and reads of a group.

    Args:
        grads: Opened sequences, those of the group's first step.
        sums: Their sums over rows, a tuple of tensors for each.
        insides: Which of the numbers of each tensor exist.
        tile: The tile of the program.
    """
    dqs, dks, dzs, dkeys = sums
    _store_sums(grads.q, dqs, insides, tile)
    _store_sums(grads.k, dks, insides, tile)
    if grads.z is not None:
        _store_sums(grads.z, dzs, insides, tile)
    if grads.read is not None:
        _store_sums(grads.read, dkeys, insides, tile)


@triton.jit
def store_head(
    grads,
    ahead: tl.constexpr,
    inside,
    raw,
    x,
    held,
    ddecay,
    dwrite_r,
    spec: tl.constexpr,
):
    """Store the gradients of decay and write gate, from those of the tile and of its rows.

    Returns:
        The gradients of the head's parameters, decay and dt_bias; that of a decay which is the
        parameter itself still not summed.
    """
    dparameter, dbias = x.decay * 0.0, x.decay * 0.0
    if spec.decay == "parameter":
        dparameter = ddecay
    elif spec.decay != "none":
        dbias, dparameter = mapped_back(
            ddecay, raw.decay, x.decay, held.decay, held.dt_bias, spec.decay, spec.fast
        )
        if grads.decay is not None:
            store(grads.decay, ahead, dbias, inside.here)
    if grads.write is not None:
        dwrite = tl.sum(dwrite_r, 0)
        store(grads.write, ahead, dwrite * x.write * (1.0 - x.write), inside.here)
    return dparameter, dbias
