"""Which tile configs the CUDA kernels of a plan run with, chosen by arithmetic and not by trial.

The backward pass comes first: it decides how far apart the checkpoints are. A change of T never
changes anything, and of B only where the number of heads no longer fills the GPU. The limits below
were chosen by measurements on an H200 (docs/performance.md, 2026-11-21).
Imports no torch.

Symbols: R value rows, N key columns, H heads, B batch.
"""

from __future__ import annotations

import math
from dataclasses import replace

from elman.kernels.driver import Limits
from elman.ops.matrix_state.cuda.tile_config import LEAST_ALIGN, TileConfig, Types
from elman.ops.matrix_state.cuda.tiles import (
    SCHEDULERS,
    WARP,
    backward_tile,
    columns_of,
    forward_tile,
    vector_of,
)
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.recurrences import CELLS

H200 = Limits(132, 227 * 1024, 228 * 1024, 9)
_RESERVED = 1024  # shared memory that the system takes for each block
_MOST_WARPS, _MOST_FORWARD_WARPS = 16, 8  # of a block that hold the state
_SMALL = 16  # numbers of the state in a lane, up to which a block may have all these warps
_FEW_REGISTERS = 18  # the same, up to which producer warps have registers beside a walking one
_MOST_THREADS = 640  # of a block, so that each has its 96 registers
_CROWDED = 1.5  # warps of a scheduler; more leave no place for producer warps
_HALVED_FROM = 6  # warps of a block that may become two
_MANY_BACKWARD, _MANY_FORWARD, _MANY_OF_FOUR = 7, 9, 13  # columns of a lane; see _evened
_STEPS, _FEWEST_STEPS = (16, 12, 8), 4
_WARPS_AT_ONCE = 2  # of a scheduler, that wait for their own results more than for each other
_PRODUCER_STEPS = (32, 24, 16, 12, 8)  # where producer warps recompute segments
_PAIRED_STEPS = 0.75  # of the steps of a segment, that two warps in a block must leave
_FORWARD_STEPS = (32, 24, 16)  # of a segment of the forward pass, which keeps no states of its own


def choose(plan: Plan, types: Types, heads: int, device: Limits) -> TileConfig:
    """Return the tile config for a plan, for sources that lie as evenly as the plan's widths allow.

    Args:
        plan: What is computed.
        types: Types of the kernel.
        heads: B H.
        device: The GPU.
    """
    lanes, tall = backward_tile(plan, heads, device)
    whole = math.ceil(plan.rows / (WARP // lanes * tall))
    most = _MOST_WARPS if columns_of(plan.columns, lanes) * tall <= _SMALL else _MOST_WARPS // 2
    row_tiles = max(math.ceil(whole / most), _row_tiles_to_fill(whole, heads, device))
    found = tile_config_of(plan, types, lanes, math.ceil(whole / row_tiles), tall=tall)
    fitted = _fitted(_evened(found, backward=True), heads, device)
    relieved = _with_producers(fitted, heads, device)
    return _paired(relieved, heads, device) if relieved else _halved(fitted, heads, device)


def forward_of(chosen: TileConfig, heads: int, device: Limits) -> TileConfig:
    """Return the tile config of the forward pass, whose segments are its own.

    Args:
        chosen: The backward pass's.
        heads: B H.
        device: The GPU.
    """
    plan = chosen.plan
    lanes, tall = forward_tile(plan, heads, device)
    whole = math.ceil(plan.rows / (WARP // lanes * tall))
    row_tiles = max(
        math.ceil(whole / _MOST_FORWARD_WARPS), _row_tiles_to_fill(whole, heads, device)
    )
    warps = math.ceil(whole / row_tiles)
    found = _evened(tile_config_of(plan, chosen.types, lanes, warps, tall=tall), backward=False)
    candidates = [found]
    if _waits(found, heads, device):
        # Others prepare and finish for the warps that walk.
        relieved = replace(found, producers=True)
        candidates = [replace(relieved, shares=_shares(found, heads, device)), relieved, found]
    for candidate in candidates:
        if _fits_forward(candidate, device):
            return _lengthened(candidate, heads, device)
    return replace(chosen, producers=False)


def _lengthened(found: TileConfig, heads: int, device: Limits) -> TileConfig:
    """Return a forward pass with longer segments, if as many blocks run at a time."""
    longer = (replace(found, steps=steps) for steps in _FORWARD_STEPS)
    waves = _waves(found, heads, device)
    return next(one for one in longer if one == found or _waves(one, heads, device) <= waves)


def _waves(found: TileConfig, heads: int, device: Limits) -> float:
    """Return how many blocks of the forward pass follow each other on a multiprocessor."""
    if not _fits_forward(found, device):
        return math.inf
    blocks = math.ceil(heads * found.row_tiles / found.shares / device.multiprocessors)
    resident = device.shared_total // (found.forward_bytes * found.shares + _RESERVED)
    return math.ceil(blocks / resident)


def _waits(found: TileConfig, heads: int, device: Limits) -> bool:
    """Whether schedulers have so few warps that they often have none to run."""
    schedulers = device.multiprocessors * SCHEDULERS
    warps = heads * found.row_tiles * found.warps
    # A block alone on its multiprocessor leaves it idle while it waits.
    alone = 2 * (found.forward_bytes + _RESERVED) > device.shared_total
    few = warps <= 2 * schedulers and found.columns * found.tall <= _FEW_REGISTERS
    return warps <= schedulers or few or alone


def _shares(found: TileConfig, heads: int, device: Limits) -> int:
    """Return how many blocks share one: four warps of them, if no multiprocessor has more to do."""

    def load(shares: int) -> int:
        return math.ceil(heads * found.row_tiles / shares / device.multiprocessors) * shares

    ways = [shares for shares in (4, 2, 1) if shares * found.warps <= SCHEDULERS]
    return min(ways or [1], key=load)


def _fits_forward(tile_config: TileConfig, device: Limits) -> bool:
    shares, threads = tile_config.shares, tile_config.forward_threads
    most = _most_bytes(tile_config, backward=False) * shares
    return most <= device.shared_bytes and threads * shares <= _MOST_THREADS


def _most_bytes(tile_config: TileConfig, *, backward: bool) -> int:
    """Return the shared memory that a pass takes at most, however the sources lie."""
    aligns = (align for align in (LEAST_ALIGN, 8, 16) if align <= tile_config.align)
    ways = [replace(tile_config, align=align) for align in aligns]
    return max(one.backward_bytes if backward else one.forward_bytes for one in ways)


def tile_config_of(
    plan: Plan, types: Types, lanes: int, warps: int, steps: int = 16, tall: int = 1
) -> TileConfig:
    """Return the tile config with so many lanes to a row, warps to a block and rows to a lane."""
    vector = vector_of(plan.columns, lanes)
    tile_config = TileConfig(plan, types, lanes, warps, vector, steps, LEAST_ALIGN, tall=tall)
    return replace(tile_config, align=natural_align(tile_config))


def _evened(found: TileConfig, *, backward: bool) -> TileConfig:
    """Return a tile config whose lanes have one column more, if they had many and an odd number.

    Two or four are then read and stored at a time: less work than one by one, though one is idle.
    Not where rows of the state begin at any number: they are stored one by one.
    """
    columns = found.columns + 1
    forward = _MANY_OF_FOUR if found.tall == 4 else _MANY_FORWARD
    many = found.columns >= (_MANY_BACKWARD if backward else forward)
    vector = math.gcd(4, columns, found.plan.columns)
    return replace(found, vector=vector) if many and vector > 1 else found


def _resized(found: TileConfig, warps: int) -> TileConfig:
    """Return a tile config with so many warps to a block."""
    resized = replace(found, warps=warps)
    return replace(resized, align=natural_align(resized))


def natural_align(tile_config: TileConfig) -> int:
    """Return the alignment that the widths of a plan and its row tiles allow, in bytes."""
    plan, io = tile_config.plan, tile_config.types.sizes[0]
    widths = (plan.columns, plan.rows, tile_config.rows)
    return max(LEAST_ALIGN, math.gcd(16, *(width * io for width in widths)))


def _row_tiles_to_fill(warps: int, heads: int, device: Limits) -> int:
    """Return into how many row tiles a head can be cut before there are more blocks than places."""
    return max(1, min(warps, device.multiprocessors // heads))


def _fitted(tile_config: TileConfig, heads: int, device: Limits) -> TileConfig:
    """Return a tile config with as many steps between checkpoints as shared memory allows."""
    while True:
        tried = [replace(tile_config, steps=steps) for steps in _STEPS]
        rounds = [_rounds(one, heads, device) for one in tried]
        if min(rounds) < math.inf:
            return tried[rounds.index(min(rounds))]
        if tile_config.warps > 1:
            tile_config = _resized(tile_config, math.ceil(tile_config.warps / 2))
        elif not tile_config.scratch:
            tile_config = replace(tile_config, scratch=True)
        else:
            return replace(tile_config, steps=_FEWEST_STEPS)


def _halved(found: TileConfig, heads: int, device: Limits) -> TileConfig:
    """Return a tile config of the backward pass with two blocks where one had a multiprocessor.

    Fewer warps then wait for each other. Where rows are read, it would be more work: each block
    prepares keys and queries, and leaves their gradients to be summed.
    """
    busy = heads * found.row_tiles > device.multiprocessors
    if busy or found.warps < _HALVED_FROM or found.scratch or CELLS[found.plan.cell].reads:
        return found
    warps = math.ceil(found.warps / 2)
    halves = _fitted(_resized(found, warps), heads, device)
    return halves if halves.warps == warps and _resident(halves, device) >= 2 else found


def _paired(found: TileConfig, heads: int, device: Limits) -> TileConfig:
    """Return a tile config of the backward pass with two warps to a block for one.

    Only where rows are read: each block prepares keys and queries, and their gradients are then
    summed over fewer blocks. Segments that would have to be much shorter cost more than that.
    """
    if found.warps > 1 or found.row_tiles == 1 or not CELLS[found.plan.cell].reads:
        return found
    pair = _with_producers(_fitted(_resized(found, 2), heads, device), heads, device)
    long = pair is not None and pair.steps >= _PAIRED_STEPS * found.steps
    return pair if pair and long and pair.warps == 2 else found


def _with_producers(found: TileConfig, heads: int, device: Limits) -> TileConfig | None:
    """Return a tile config of the backward pass with producer warps, or None if warps are many.

    One segment is then recomputed while another is walked. Both need their room in shared memory,
    and more steps to a segment make up for the time in which they wait for each other. Where rows
    are read, recomputing takes longer, and eight steps are too few.
    """
    warps = heads * found.row_tiles * found.warps
    crowded = warps > _CROWDED * device.multiprocessors * SCHEDULERS
    if crowded or found.scratch or found.tall * found.columns > _FEW_REGISTERS:
        return None
    rounds = _rounds(found, heads, device)
    fewest = 12 if CELLS[found.plan.cell].reads else 8
    ways = (replace(found, producers=True, steps=steps) for steps in _PRODUCER_STEPS)
    fits = (one for one in ways if one.steps >= fewest and one.backward_threads <= _MOST_THREADS)
    return next((one for one in fits if _rounds(one, heads, device) <= rounds), None)


def calls_at_once(plan: Plan, types: Types, batch: int, device: Limits) -> float:
    """Return how many calls the GPU runs at a time, each about as fast as if it were alone.

    Args:
        plan: What is computed.
        types: Types of the kernel.
        batch: B.
        device: The GPU.
    """
    heads = batch * plan.heads
    back = choose(plan, types, heads, device)
    blocks = heads * back.row_tiles
    warps = blocks * back.backward_threads // WARP
    room = _resident(back, device) * device.multiprocessors / blocks
    return min(room, _WARPS_AT_ONCE * SCHEDULERS * device.multiprocessors / warps)


def _resident(tile_config: TileConfig, device: Limits) -> int:
    """Return how many blocks of the backward pass a multiprocessor holds."""
    if _most_bytes(tile_config, backward=True) > device.shared_bytes:
        return 0
    return device.shared_total // (tile_config.backward_bytes + _RESERVED)


def _rounds(tile_config: TileConfig, heads: int, device: Limits) -> float:
    """Return how many blocks of the backward pass follow each other on a multiprocessor."""
    blocks = math.ceil(heads * tile_config.row_tiles / device.multiprocessors)
    resident = _resident(tile_config, device)
    return math.ceil(blocks / resident) if resident else math.inf
