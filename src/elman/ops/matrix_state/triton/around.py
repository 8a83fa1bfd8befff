"""The small Triton kernels around the large ones: what all row tiles of a head would do alike.

Before the loop over time, activations and norms of keys and queries, and maps of decays; behind it,
their derivatives, and the sums of what row tiles left of a gradient.

Shape legend: s vectors of a program, each a head's at one step; c channels; n columns, padded to a
power of two; t steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from elman.ops.matrix_state.triton.inputs import vector_back
from elman.ops.matrix_state.triton.maths import activate, mapped, mapped_back, unit


@triton.jit
def _offset(sequence, row, steps):
    """Return where row b T + t of a sequence begins."""
    batch, t = row // steps, row % steps
    return batch.to(tl.int64) * sequence.batch + t.to(tl.int64) * sequence.time


@triton.jit
def _part(partial, part: tl.constexpr):
    """Return where a part of a gradient begins; its product may exceed 32 bits."""
    return (tl.program_id(0).to(tl.int64) * 0 + partial.tile) * part


@triton.jit
def _vectors(rows, heads: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
    """Return row and head of this program's vectors, where they end, and which numbers exist."""
    padded: tl.constexpr = triton.next_power_of_2(width)
    number_s1 = tl.program_id(0) * block + tl.arange(0, block)[:, None]
    column_1n = tl.arange(0, padded)[None, :]
    inside_sn = (number_s1 < rows * heads) & (column_1n < width)
    return number_s1 // heads, (number_s1 % heads) * width + column_1n, inside_sn


@triton.jit(do_not_specialize=["rows", "steps"])
def prepare_vectors(
    source,
    prepared,
    bias,
    rows,
    steps,
    heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    act: tl.constexpr,
    is_unit: tl.constexpr,
    fast: tl.constexpr,
):
    """Activate vectors of a role with their bias, and divide them by their norms.

    Args:
        source: The role as it stands in its source, a Sequence.
        prepared: Where the vectors go, a Sequence.
        bias: [heads, width], or None.
        rows: B T.
        steps: T.
        heads: Vectors of a row.
        width: Their numbers.
        block: Vectors of a program.
        act: Their activation.
        is_unit: Whether they are divided.
        fast: As of :class:`~elman.ops.matrix_state.triton.spec.Spec`.
    """
    row_s1, channel_sn, inside_sn = _vectors(rows, heads, width, block)
    from_sn = source.data + _offset(source, row_s1, steps) + channel_sn
    x_sn = tl.load(from_sn, mask=inside_sn, other=0.0).to(tl.float32)
    if bias is not None:
        x_sn += tl.load(bias + channel_sn, mask=inside_sn, other=0.0)
    x_sn = activate(x_sn, act, fast)
    if is_unit:
        x_sn = unit(x_sn, fast)
    to_sn = prepared.data + _offset(prepared, row_s1, steps) + channel_sn
    tl.store(to_sn, x_sn.to(prepared.data.dtype.element_ty), mask=inside_sn)


@triton.jit(do_not_specialize=["rows", "steps"])
def vectors_back(
    source,
    partial,
    grad,
    rows,
    steps,
    parts: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    act: tl.constexpr,
    is_unit: tl.constexpr,
    fast: tl.constexpr,
):
    """Add the parts of the gradients of prepared vectors, and go back to what they were made of.

    Args:
        partial: The parts, a Sequence.
        grad: Where the gradient goes, a Sequence.
        parts: How many; other arguments are those of :func:`prepare_vectors`.
    """
    row_s1, channel_sn, inside_sn = _vectors(rows, heads, width, block)
    from_sn = source.data + _offset(source, row_s1, steps) + channel_sn
    x_sn = tl.load(from_sn, mask=inside_sn, other=0.0).to(tl.float32)
    part_sn = partial.data + _offset(partial, row_s1, steps) + channel_sn
    total_sn = tl.full(x_sn.shape, 0.0, tl.float32)
    for part in tl.static_range(parts):
        here_sn = tl.load(part_sn + _part(partial, part), mask=inside_sn, other=0.0)
        total_sn += here_sn.to(tl.float32)
    total_sn = vector_back(total_sn, x_sn, is_unit, act, fast)
    to_sn = grad.data + _offset(grad, row_s1, steps) + channel_sn
    tl.store(to_sn, total_sn.to(grad.data.dtype.element_ty), mask=inside_sn)


@triton.jit
def _head_parameters(factor, dt_bias, head, kind: tl.constexpr):
    """Return what the map of a decay takes of a head: exp(a_log) and dt_bias of the mamba map."""
    if kind == "mamba":
        return tl.exp(tl.load(factor + head)), tl.load(dt_bias + head)
    else:
        return 0.0, 0.0


@triton.jit(do_not_specialize=["steps"])
def prepare_decays(
    source,
    prepared,
    factor,
    dt_bias,
    steps,
    heads: tl.constexpr,
    block: tl.constexpr,
    kind: tl.constexpr,
    fast: tl.constexpr,
):
    """Map the decays of a head of a batch row.

    Args:
        source: The role as it stands in its source, a Sequence.
        prepared: Where the decays go, a Sequence.
        factor: a_log [heads] of the mamba map, or None.
        dt_bias: [heads] of the mamba map, or None.
        steps: T.
        heads: Decays of a row.
        block: Steps of a turn.
        kind: sigmoid or mamba.
        fast: As of :class:`~elman.ops.matrix_state.triton.spec.Spec`.
    """
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    factor, dt_bias = _head_parameters(factor, dt_bias, head, kind)
    for begin in range(0, steps, block):
        t_t = begin + tl.arange(0, block)
        row_t = batch * steps + tl.minimum(t_t, steps - 1)
        x_t = tl.load(source.data + _offset(source, row_t, steps) + head).to(tl.float32)
        y_t = mapped(x_t, factor, dt_bias, kind, fast)
        to_t = prepared.data + _offset(prepared, row_t, steps) + head
        tl.store(to_t, y_t, mask=t_t < steps)


@triton.jit(do_not_specialize=["steps"])
def decays_back(
    source,
    partial,
    grad,
    factor,
    dt_bias,
    dfactor,
    ddt_bias,
    steps,
    parts: tl.constexpr,
    heads: tl.constexpr,
    block: tl.constexpr,
    kind: tl.constexpr,
    fast: tl.constexpr,
):
    """Add the parts of the gradients of decays, and go back to their role and parameters.

    Args:
        partial: The parts, a Sequence.
        grad: Where the gradient of the role goes, a Sequence.
        dfactor: Where that of factor goes, [B, heads], or None.
        ddt_bias: Where that of dt_bias goes, [B, heads], or None.
        parts: How many; other arguments are those of :func:`prepare_decays`.
    """
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    factor, dt_bias = _head_parameters(factor, dt_bias, head, kind)
    factor_t, bias_t = tl.full([block], 0.0, tl.float32), tl.full([block], 0.0, tl.float32)
    for begin in range(0, steps, block):
        t_t = begin + tl.arange(0, block)
        row_t, inside_t = batch * steps + tl.minimum(t_t, steps - 1), t_t < steps
        x_t = tl.load(source.data + _offset(source, row_t, steps) + head).to(tl.float32)
        part_t = partial.data + _offset(partial, row_t, steps) + head
        dy_t = tl.full([block], 0.0, tl.float32)
        for part in tl.static_range(parts):
            dy_t += tl.load(part_t + _part(partial, part), mask=inside_t, other=0.0)
        y_t = mapped(x_t, factor, dt_bias, kind, fast)
        dx_t, dfactor_t = mapped_back(dy_t, x_t, y_t, factor, dt_bias, kind, fast)
        factor_t, bias_t = factor_t + dfactor_t, bias_t + dx_t
        to_t = grad.data + _offset(grad, row_t, steps) + head
        tl.store(to_t, dx_t.to(grad.data.dtype.element_ty), mask=inside_t)
    if kind == "mamba":
        tl.store(dfactor + tl.program_id(0), tl.sum(factor_t, 0))
        tl.store(ddt_bias + tl.program_id(0), tl.sum(bias_t, 0))


@triton.jit
def _sum_parts_of(
    partial,
    grad,
    rows,
    steps,
    parts: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    number_c = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    size = (tl.program_id(0).to(tl.int64) * 0 + rows) * width  # may exceed 32 bits
    inside_c = number_c < size
    total_c = tl.full([block], 0.0, tl.float32)
    for part in tl.static_range(parts):
        here_c = tl.load(partial + part * size + number_c, mask=inside_c, other=0.0)
        total_c += here_c.to(tl.float32)
    to_c = grad.data + _offset(grad, (number_c // width).to(tl.int32), steps) + number_c % width
    tl.store(to_c, total_c.to(grad.data.dtype.element_ty), mask=inside_c)


@triton.jit(do_not_specialize=["rows", "steps"])
def sum_parts(
    partials,
    grads,
    rows,
    steps,
    parts: tl.constexpr,
    widths: tl.constexpr,
    block: tl.constexpr,
):
    """Add the parts of gradients [parts, rows, width], where rows are B T.

    All gradients share one launch, because a launch takes as long as their sums.

    Args:
        partials: The parts of each gradient, contiguous.
        grads: Where their sums go, a Sequence each.
        rows: B T.
        steps: T.
        parts: How many each has.
        widths: Channels of a row of each.
        block: Numbers of a program.
    """
    for which in tl.static_range(len(parts)):
        if tl.program_id(1) == which:
            _sum_parts_of(
                partials[which], grads[which], rows, steps, parts[which], widths[which], block
            )


@triton.jit
def _sum_shares_of(
    share, total, count, size: tl.constexpr, block: tl.constexpr, width: tl.constexpr
):
    rows: tl.constexpr = block // width
    number_1c = (tl.program_id(0) * width + tl.arange(0, width))[None, :]
    total_sc = tl.full([rows, width], 0.0, tl.float32)
    for begin in range(0, count, rows):
        here_s1 = (begin + tl.arange(0, rows))[:, None]
        inside_sc = (here_s1 < count) & (number_1c < size)
        from_sc = share + here_s1.to(tl.int64) * size + number_1c
        total_sc += tl.load(from_sc, mask=inside_sc, other=0.0)
    total_1c = tl.sum(total_sc, 0, keep_dims=True)
    tl.store(total + number_1c, total_1c.to(total.dtype.element_ty), mask=number_1c < size)


@triton.jit(do_not_specialize=["batch"])
def sum_shares(
    shares,
    totals,
    batch,
    tiles: tl.constexpr,
    sizes: tl.constexpr,
    block: tl.constexpr,
    widths: tl.constexpr,
):
    """Add what programs left of the gradients of parameters, all in one launch.

    Args:
        shares: Of each parameter, [batch tiles, size], contiguous.
        totals: Where each gradient goes, contiguous.
        batch: Batch rows.
        tiles: Shares of each parameter in a batch row.
        sizes: Numbers of each parameter.
        block: Numbers that a program loads at a time.
        widths: Numbers of each parameter that a program sums, a power of two.
    """
    for which in tl.static_range(len(sizes)):
        if tl.program_id(1) == which:
            count = batch * tiles[which]
            _sum_shares_of(shares[which], totals[which], count, sizes[which], block, widths[which])
