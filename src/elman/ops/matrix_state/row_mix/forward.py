"""The Triton kernel of M2RNN that goes forward: one state, whose rows a matrix mixes, a program.

    Z = tanh(W^T S + v k^T),  S' = f S + (1 - f) Z,  out = (S' q + D v) silu(g)

(matrix-state specification 13, which writes the transpose of S). Every row of S' needs all rows of
S, so a program holds a whole state, and with it W. docs/triton.md says how it differs from the
kernels of the other cells.

Shape legend: r and u rows of the state, n columns, all padded to powers of two and at least 16,
which products of tensor cores need.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.forward import (
    begun,
    load_state,
    outputs_of,
    store_output,
    store_state,
)
from elman.ops.matrix_state.triton.maths import activate, tanh
from elman.ops.matrix_state.triton.places import place_of, wide

GATE_FAST = tl.constexpr(False)  # the gate's short form costs registers: 16 x 16 would spill


class HeadSequence(NamedTuple):
    """Where a sequence, or its gradient, lies.

    Number j of head h at time t of batch row b is ``data[b batch + t time + h head + j]``: heads
    that share a sequence have ``head`` 0.
    """

    data: Any
    batch: Any
    time: Any
    head: Any


class Sequences(NamedTuple):
    """The sequences of a call, a :class:`HeadSequence` each."""

    q: Any
    k: Any
    v: Any
    decay: Any
    gate: Any


class Numbers(NamedTuple):
    """What a step reads beside the state."""

    q_n: Any
    k_n: Any
    v_r: Any
    decay: Any
    gate_r: Any


@triton.jit
def place_in(sequence, at, t):
    """Return where the numbers of a head at time t begin."""
    first = at.batch * sequence.batch + at.head * sequence.head
    return sequence.data + first + wide(t, at) * sequence.time


@triton.jit
def load_step(of, at, t, steps, spec: tl.constexpr):
    """Return the numbers of step t: zeros beyond the last step.

    They stay in the dtype of the sequences: to widen one is to wait for it.
    """
    inside_r = (at.row_r < spec.rows) & (t < steps)
    inside_n = (at.column_n < spec.columns) & (t < steps)
    return Numbers(
        tl.load(place_in(of.q, at, t) + at.column_n, mask=inside_n, other=0.0),
        tl.load(place_in(of.k, at, t) + at.column_n, mask=inside_n, other=0.0),
        tl.load(place_in(of.v, at, t) + at.row_r, mask=inside_r, other=0.0),
        tl.load(place_in(of.decay, at, t), mask=t < steps, other=0.0),
        tl.load(place_in(of.gate, at, t) + at.row_r, mask=inside_r, other=0.0),
    )


@triton.jit
def widened(x):
    """Return the numbers of a step in fp32: here a program waits for its loads."""
    return Numbers(
        x.q_n.to(tl.float32),
        x.k_n.to(tl.float32),
        x.v_r.to(tl.float32),
        x.decay.to(tl.float32),
        x.gate_r.to(tl.float32),
    )


@triton.jit
def _load_group(of, at, t, steps, spec: tl.constexpr, tile: tl.constexpr):
    """Return the numbers of the group of steps that begins at t."""
    found = ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        found = found + (load_step(of, at, t + ahead, steps, spec),)
    return found


@triton.jit
def load_mix(mix, at, turned: tl.constexpr, spec: tl.constexpr):
    """Return W of the head, or its transpose if ``turned``; 0 where it is padded."""
    one_uu, other_uu = at.row_r[:, None], at.row_r[None, :]
    inside_uu = (one_uu < spec.rows) & (other_uu < spec.rows)
    first = mix + at.head * (spec.rows * spec.rows)
    if turned:
        return tl.load(first + other_uu * spec.rows + one_uu, mask=inside_uu, other=0.0)
    else:
        return tl.load(first + one_uu * spec.rows + other_uu, mask=inside_uu, other=0.0)


@triton.jit
def load_head_rows(pointer, at, spec: tl.constexpr):
    """Return the numbers that a parameter [heads, rows] has for the rows of the head."""
    first = pointer + at.head * spec.rows
    return tl.load(first + at.row_r, mask=at.row_r < spec.rows, other=0.0)


@triton.jit
def _narrow_product(one, other, added, spec: tl.constexpr):
    """Return ``one @ other + added`` of factors in bf16."""
    if spec.widened:
        one, other = one.to(tl.float32), other.to(tl.float32)
    return tl.dot(one, other, added, input_precision="ieee")


@triton.jit
def product(one, other, added, spec: tl.constexpr):
    """Return ``one @ other + added`` in fp32.

    With ``spec.split``, tensor cores compute it in bf16: a factor is the sum of two numbers of
    bf16, and of the four products the smallest is left out. The error is 2^-16 of a product, below
    that of tanh for narrow sequences. TF32 would take as long, and cuts its factors.
    """
    if spec.split:
        high_one, high_other = one.to(tl.bfloat16), other.to(tl.bfloat16)
        low_one = (one - high_one.to(tl.float32)).to(tl.bfloat16)
        low_other = (other - high_other.to(tl.float32)).to(tl.bfloat16)
        added = _narrow_product(low_one, high_other, added, spec)
        added = _narrow_product(high_one, low_other, added, spec)
        return _narrow_product(high_one, high_other, added, spec)
    else:
        return tl.dot(one, other, added, input_precision="ieee")


@triton.jit
def mixed(state_rn, turned_ru, x, spec: tl.constexpr):
    """Return Z = tanh(W^T S + v k^T)."""
    written_rn = x.v_r[:, None] * x.k_n[None, :]
    return tanh(product(turned_ru, state_rn, written_rn, spec), spec.fast)


@triton.jit
def next_state(state_rn, new_rn, x):
    """Return S' = f S + (1 - f) Z."""
    return new_rn + x.decay * (state_rn - new_rn)


@triton.jit(do_not_specialize=["steps", "states"])
def row_mix_forward(
    sequences,
    mix,
    residual,
    first,
    last,
    out,
    checkpoints,
    resets,
    steps,
    states,
    spec: tl.constexpr,
    tile: tl.constexpr,
):
    """Run one state over all of time.

    Args:
        sequences: :class:`Sequences`.
        mix: W [heads, rows, rows].
        residual: D [heads, rows].
        first: State before the first step [B, heads, rows, columns].
        last: State after the last one.
        out: Output [B, T, heads, rows].
        checkpoints: States before the steps K, 2 K ..., or None.
        resets: Mask [B, T] of uint8, or None.
        steps: T.
        states: B heads.
        spec: What is computed, :class:`~elman.ops.matrix_state.row_mix.spec.MixSpec`.
        tile: How, :class:`~elman.ops.matrix_state.triton.tiles.Tile`.
    """
    at = place_of(spec, tile)
    number = at.batch * spec.heads + at.head
    turned_ru = load_mix(mix, at, True, spec)
    residual_r = load_head_rows(residual, at, spec)
    state_rn = load_state(first, number, at, spec)
    found = _load_group(sequences, at, 0, steps, spec, tile)
    for begin in range(0, steps, tile.group):
        group = found
        found = _load_group(sequences, at, begin + tile.group, steps, spec, tile)
        if checkpoints is not None:  # noqa: SIM102 (decided by the compiler, and the next is not)
            if (begin % tile.steps == 0) & (begin > 0):
                kept = wide(begin // tile.steps - 1, at) * states + number
                store_state(checkpoints, kept, at, state_rn, True, spec)
        for ahead in tl.static_range(tl.constexpr(tile.group)):
            t = begin + ahead
            x = widened(group[ahead])
            state_rn = begun(state_rn, resets, at, t, steps)
            state_rn = next_state(state_rn, mixed(state_rn, turned_ru, x, spec), x)
            y_r = tl.sum(state_rn * x.q_n[None, :], 1) + residual_r * x.v_r
            gated_r = y_r * activate(x.gate_r, "silu", GATE_FAST)
            to_r = outputs_of(out, at, t, steps, spec)
            store_output(to_r, gated_r, (at.row_r < spec.rows) & (t < steps))
            if t == steps - 1:  # a branch: the store needs another layout, which takes time
                store_state(last, number, at, state_rn, True, spec)
