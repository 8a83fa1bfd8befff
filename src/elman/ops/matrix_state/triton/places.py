"""Where the numbers of a program lie: sequences, and which of their numbers exist.

A program works out once where its numbers begin. A step of a group is then the address of the group
plus a constant: that costs no arithmetic, and Triton's compiler, whose time grows with the square
of the number of operations, has little to look at.

Shape legend: r rows of a tile, n columns of the state, both padded to powers of two.
"""

# Triton's compiler knows no starred elements.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Sequence(NamedTuple):
    """Where a role of the plan, or its gradient, lies.

    Number j of head h at time t of batch row b is ``data[b batch + t time + h width + j]``; row
    tile i of a head adds ``i tile`` where each tile writes a part of a gradient of its own.
    :func:`opened` puts into ``data`` where a program's numbers of step 0 are.
    """

    data: Any
    batch: Any
    time: Any
    tile: Any


class Roles(NamedTuple):
    """A :class:`Sequence` for each role that the plan has, else None.

    ``kept_read`` is no role: it is what the forward pass kept of what each step read.
    """

    v: Any = None
    g0: Any = None
    gate: Any = None
    decay: Any = None
    write: Any = None
    k: Any = None
    q: Any = None
    z: Any = None
    read: Any = None
    kept_read: Any = None


class Place(NamedTuple):
    """The part of the work that a program does.

    Attributes:
        batch: Batch row.
        head: Head.
        tile: Row tile of the head.
        row_r: Rows.
        column_n: Columns, as :func:`neighbours` returns them.
    """

    batch: Any
    head: Any
    tile: Any
    row_r: Any
    column_n: Any


class Inside(NamedTuple):
    """Which numbers of a step exist.

    Attributes:
        here: Whether the step does.
        row_r: Those on rows.
        column_n: Those on columns, in the shape of :func:`on_columns`.
    """

    here: Any
    row_r: Any
    column_n: Any


@triton.jit
def neighbours(tile: tl.constexpr):
    """Return the columns of a tile, said to be neighbours by fours and no more.

    A thread then has four columns of a state in every dtype, where it would have eight in 16 bits,
    and a state has one layout everywhere.

    Returns:
        Numbers [columns], or where the tile is folded [folds, 1, columns / folds].
    """
    if tile.folds == 1:
        return tl.max_contiguous(tl.arange(0, tile.columns), 4)
    else:
        width: tl.constexpr = tile.columns // tile.folds
        first_f11 = tl.arange(0, tile.folds)[:, None, None] * width
        return tl.max_contiguous(first_f11 + tl.arange(0, width)[None, None, :], [1, 1, 4])


@triton.jit
def place_of(spec: tl.constexpr, tile: tl.constexpr):
    """Return what this program does: tiles of a head follow each other, then heads, then rows."""
    number = tl.program_id(0).to(tl.int64)
    in_batch = number // tile.row_tiles
    return Place(
        in_batch // spec.heads,
        in_batch % spec.heads,
        number % tile.row_tiles,
        (number % tile.row_tiles) * tile.rows + tl.arange(0, tile.rows),
        neighbours(tile),
    )


@triton.jit
def wide(t, at):
    """Return a time in 64 bits: its product with a stride may need more than 32."""
    return at.batch * 0 + t


@triton.jit
def on_columns(number_n, tile: tl.constexpr):
    """Return numbers on the columns as they are loaded: [columns], or spread as a state is.

    Spread, every thread loads what its part of the state needs, and none asks another for it.
    """
    if tile.folds > 1:
        shape: tl.constexpr = [tile.folds, tile.rows, tile.columns // tile.folds]
        return tl.broadcast_to(number_n, shape)
    elif tile.spread:
        return tl.broadcast_to(number_n[None, :], [tile.rows, tile.columns])
    else:
        return number_n


@triton.jit
def as_stored(number_n, tile: tl.constexpr):
    """Return sums over rows, [rows, columns] or [1, columns], as they are stored."""
    return number_n if tile.spread else tl.reshape(number_n, [tile.columns])


@triton.jit
def inside_tile(at, spec: tl.constexpr, tile: tl.constexpr):
    """Return which numbers of a program exist at every step, an :class:`Inside`.

    What always exists is True, which no instruction asks.
    """
    inside_r = at.row_r < spec.rows if spec.rows % tile.rows > 0 else True
    inside_n = on_columns(at.column_n < spec.columns, tile) if spec.columns < tile.columns else True
    return Inside(True, inside_r, inside_n)


@triton.jit
def inside_group(inside, t, steps, tile: tl.constexpr):
    """Return which numbers of the steps of a group from t on exist, an :class:`Inside` each."""
    left, found = steps - t, ()
    for ahead in tl.static_range(tl.constexpr(tile.group)):
        here = left > ahead
        found = found + (Inside(here, inside.row_r & here, inside.column_n & here),)
    return found


@triton.jit
def _step_of_row(tile: tl.constexpr):
    """Return whose sums over rows the rows of a spread tile have: steps of a group, in turn."""
    return tl.arange(0, tile.rows)[:, None] % tile.group


@triton.jit
def inside_sums(inside, t, steps, tile: tl.constexpr):
    """Return which sums over rows exist of the steps of a group from t on.

    There is a mask for each tensor of sums: for a step, or where tiles are spread, for as many
    steps as there are rows.
    """
    left, found = steps - t, ()
    if tile.spread:
        step_r1 = _step_of_row(tile)
        parts: tl.constexpr = (tile.group + tile.rows - 1) // tile.rows
        for part in tl.static_range(parts):
            here_r1 = left > step_r1 + part * tile.rows
            if tile.rows > tile.group:
                here_r1 = here_r1 & (tl.arange(0, tile.rows)[:, None] < tile.group)
            found = found + (inside.column_n & here_r1,)
    else:
        for ahead in tl.static_range(tl.constexpr(tile.group)):
            found = found + (inside.column_n & (left > ahead),)
    return found


@triton.jit
def _begin(sequence, at, width: tl.constexpr):
    return sequence.data + at.batch * sequence.batch + at.head * width


@triton.jit
def _moved(sequence, data):
    return Sequence(data, sequence.batch, sequence.time, sequence.tile)


@triton.jit
def on_rows(sequence, at, spec: tl.constexpr):
    """Return a sequence with the place of a program's rows at step 0."""
    return _moved(sequence, _begin(sequence, at, spec.rows) + at.row_r)


@triton.jit
def _shared(sequence, at, spec: tl.constexpr, tile: tl.constexpr):
    own = _begin(sequence, at, spec.columns) + at.tile * sequence.tile
    return _moved(sequence, own + on_columns(at.column_n, tile))


@triton.jit
def _number(sequence, at):
    return _moved(sequence, _begin(sequence, at, 1) + at.tile * sequence.tile)


@triton.jit
def opened(roles, at, spec: tl.constexpr, tile: tl.constexpr):
    """Return the roles with the places of a program's numbers of step 0."""
    return Roles(
        on_rows(roles.v, at, spec),
        on_rows(roles.g0, at, spec) if roles.g0 is not None else None,
        on_rows(roles.gate, at, spec) if roles.gate is not None else None,
        _number(roles.decay, at) if roles.decay is not None else None,
        _number(roles.write, at) if roles.write is not None else None,
        _shared(roles.k, at, spec, tile),
        _shared(roles.q, at, spec, tile),
        _shared(roles.z, at, spec, tile) if roles.z is not None else None,
        _shared(roles.read, at, spec, tile) if roles.read is not None else None,
        on_rows(roles.kept_read, at, spec) if roles.kept_read is not None else None,
    )


@triton.jit
def _of_sums(sequence, tile: tl.constexpr):
    return _moved(sequence, sequence.data + _step_of_row(tile) * sequence.time)


@triton.jit
def opened_gradients(grads, at, spec: tl.constexpr, tile: tl.constexpr):
    """Return where gradients of step 0 go; on columns, of the step whose sums a row has."""
    grads = opened(grads, at, spec, tile)
    if tile.spread:
        grads = Roles(
            grads.v,
            grads.g0,
            grads.gate,
            grads.decay,
            grads.write,
            _of_sums(grads.k, tile),
            _of_sums(grads.q, tile),
            _of_sums(grads.z, tile) if grads.z is not None else None,
            _of_sums(grads.read, tile) if grads.read is not None else None,
        )
    return grads


@triton.jit
def from_time(sequence, at, t):
    """Return an opened sequence with the places of step t for those of step 0."""
    return _moved(sequence, sequence.data + wide(t, at) * sequence.time)


@triton.jit
def roles_from(roles, at, t):
    """Return opened roles with the places of step t for those of step 0."""
    return Roles(
        from_time(roles.v, at, t),
        from_time(roles.g0, at, t) if roles.g0 is not None else None,
        from_time(roles.gate, at, t) if roles.gate is not None else None,
        from_time(roles.decay, at, t) if roles.decay is not None else None,
        from_time(roles.write, at, t) if roles.write is not None else None,
        from_time(roles.k, at, t),
        from_time(roles.q, at, t),
        from_time(roles.z, at, t) if roles.z is not None else None,
        from_time(roles.read, at, t) if roles.read is not None else None,
        from_time(roles.kept_read, at, t) if roles.kept_read is not None else None,
    )


@triton.jit
def _fetched(sequence, first, t, steps, width: tl.constexpr, span: tl.constexpr):
    """Ask for width numbers from the first on of a span of steps, up to 16 by each thread."""
    of_width: tl.constexpr = (width + 15) // 16
    of_span: tl.constexpr = 32 // span if span < 16 else 1  # a short one has threads to spare
    parts: tl.constexpr = of_width if of_width > of_span else of_span
    together: tl.constexpr = 32 // parts
    thread = tl.arange(0, 32)
    number = thread % parts * ((width + parts - 1) // parts)
    if width % parts > 0:
        number = tl.minimum(number, width - 1)
    text: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    for turn in tl.static_range((span + together - 1) // together):
        ahead = turn * together + thread // parts
        if together > span:
            ahead = ahead % span
        step = tl.minimum(t + ahead, steps - 1).to(tl.int64)
        at = [first + step * sequence.time + number]
        tl.inline_asm_elementwise(text, "=r,l", at, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _fetch_rows(sequence, at, t, steps, spec: tl.constexpr, tile: tl.constexpr, span: tl.constexpr):
    if sequence is not None:
        width: tl.constexpr = tile.rows if tile.rows < spec.rows else spec.rows
        row = at.tile * tile.rows
        if spec.rows % tile.rows > 0:
            row = tl.minimum(row, spec.rows - width)  # the last tile ends beyond the head
        _fetched(sequence, _begin(sequence, at, spec.rows) + row, t, steps, width, span)


@triton.jit
def _fetch_shared(sequence, at, t, steps, width: tl.constexpr, span: tl.constexpr):
    if sequence is not None:
        _fetched(sequence, _begin(sequence, at, width), t, steps, width, span)


@triton.jit
def fetch(roles, dout, at, t, steps, spec: tl.constexpr, tile: tl.constexpr, span: tl.constexpr):
    """Ask the GPU's second cache for what the steps of a span from t on load later.

    A load then takes no longer than from that cache. What waits for it often waits for more: the
    compiler has six marks to wait for, and loads share them with sums over threads.

    Args:
        roles: Roles that are not opened.
        dout: Gradient of the output, not opened, or None.
        at: What the program does.
        t: First step.
        steps: T.
        spec: What is computed.
        tile: The tile of the program.
        span: How many steps, a power of two up to 32.
    """
    if spec.fetches:
        _fetch_rows(roles.v, at, t, steps, spec, tile, span)
        _fetch_rows(roles.g0, at, t, steps, spec, tile, span)
        _fetch_rows(roles.gate, at, t, steps, spec, tile, span)
        _fetch_rows(roles.kept_read, at, t, steps, spec, tile, span)
        _fetch_rows(dout, at, t, steps, spec, tile, span)
        _fetch_shared(roles.k, at, t, steps, spec.columns, span)
        _fetch_shared(roles.q, at, t, steps, spec.columns, span)
        _fetch_shared(roles.z, at, t, steps, spec.columns, span)
        _fetch_shared(roles.read, at, t, steps, spec.columns, span)
        _fetch_shared(roles.decay, at, t, steps, 1, span)
        _fetch_shared(roles.write, at, t, steps, 1, span)


@triton.jit
def loaded(sequence, ahead: tl.constexpr, inside):
    """Return the numbers of an opened sequence so many steps ahead: 0 where none is inside."""
    return tl.load(sequence.data + ahead * sequence.time, mask=inside, other=0.0)


@triton.jit
def store(sequence, ahead: tl.constexpr, number, inside):
    """Store numbers of an opened sequence so many steps ahead."""
    to = sequence.data + ahead * sequence.time
    tl.store(to, number.to(sequence.data.dtype.element_ty), mask=inside)
