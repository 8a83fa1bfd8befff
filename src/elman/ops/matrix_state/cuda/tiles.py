"""Which piece of the state a lane holds: how many lanes share rows, and how many rows.

A piece is measured in numbers of the state. The limits below were chosen by measurements on an
H200 (docs/performance.md, 2026-11-21, tile configs for sizes between the powers of two). They are
rules, and no least of a cost.

Imports no torch.
"""

from __future__ import annotations

import math

from elman.kernels.driver import Limits
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.recurrences import CELLS

WARP, SCHEDULERS = 32, 4
"""Lanes of a warp, and a multiprocessor's schedulers."""
_WARPS = 1024  # of a GPU, to aim at: two for each scheduler, which hide each other's latency
_ONCE = 4  # what a warp does once per step is as much as for so many numbers of each lane
# Numbers in a piece.
_MOST_FORWARD, _MOST_BACKWARD = 64, 32
_MOST_WITH_GATES = 16  # backward: gates take the registers of larger pieces ...
_COLUMNS_WITH_GATES = range(49, 65)  # ... in these widths; of wider rows they are too many warps
_LEAST, _LEAST_WITH_READS = 4.0, 8.0
_LARGE = 24  # a larger one takes so many registers that a scheduler has two warps at a time
_HALVED_FROM = 16  # the smallest one that may be halved
_WITH_THREE_ROWS = 16  # a piece of four rows that is larger may have three
# Lanes that share a row, at most.
_MOST_LANES, _MOST_LANES_FORWARD, _MOST_LANES_WITH_READS = 16, 8, 8
# Columns of a lane, at least: with two rows of it, and with four or where rows are read.
_NARROWEST, _NARROWEST_OF_FOUR = 4, 6
_LANES_FROM = 0.75  # lanes are the power of two that is no smaller than this share of the quotient
# Registers of the backward pass, in numbers: up to these three warps of a scheduler have room.
_ROOM_OF_THREE = 18
_WARPS_OF_TWO = 6  # a block of so many warps has two at a scheduler in any case
_MOST_FORWARD_WARPS = 8  # of a block; of row tiles, each prepares inputs
# Shares of the time or of the rows below which another tile is worth its change.
_WORTH_HALVING, _WORTH_FILLING, _FULLER, _SIZES_NEAR = 0.92, 0.9, 1.15, (0.5, 2)


def backward_tile(plan: Plan, heads: int, device: Limits) -> tuple[int, int]:
    """Return how many lanes share rows, and how many rows, in the backward pass.

    Args:
        plan: What is computed.
        heads: B H.
        device: The GPU.
    """
    gates = CELLS[plan.cell].gates and plan.columns in _COLUMNS_WITH_GATES
    most = _MOST_WITH_GATES if gates else _MOST_BACKWARD
    piece = _piece(plan, heads, device, min(most, plan.columns / 2), backward=True)
    return _lower(plan, *_filled(plan, *_tile(plan, piece), piece))


def forward_tile(plan: Plan, heads: int, device: Limits) -> tuple[int, int]:
    """Return how many lanes share rows, and how many rows, in the forward pass.

    Args:
        plan: What is computed.
        heads: B H.
        device: The GPU.
    """
    piece = _piece(plan, heads, device, min(_MOST_FORWARD, plan.columns), backward=False)
    return _shared_out(plan, piece, heads, device)


def _piece(plan: Plan, heads: int, device: Limits, most: float, *, backward: bool) -> float:
    """Return how many numbers of the state a lane should hold, ``most`` at most.

    Large pieces are fewer instructions and fewer bytes of shared memory for each number, but fewer
    warps; small ones are a shorter way from step to step. A head has a warp at least, whose lanes
    shall all have something.
    """
    of_head = plan.rows * plan.columns
    schedulers = device.multiprocessors * SCHEDULERS
    fair = heads * of_head / (WARP * min(_WARPS, 2 * schedulers))
    # With few heads the way from step to step is all that counts, and rows that read lengthen it.
    if CELLS[plan.cell].reads:
        least = _LEAST if backward and fair < 2 else _LEAST_WITH_READS
    else:
        least = max(_LEAST, min(_LEAST_WITH_READS, (4 if backward else 2) * fair))
    fewest = max(plan.columns / 8, min(plan.columns / 4, least))
    return min(max(1, of_head / WARP), max(fewest, min(fair, most)))


def _tile(plan: Plan, piece: float, most: int = _MOST_LANES) -> tuple[int, int]:
    """Return lanes to a row and rows of a lane for pieces of about so many numbers.

    Sums over the lanes of a row stand in the way of the next step where rows are read; sums over
    the rows of a column do not, but take more instructions.
    """
    reads = CELLS[plan.cell].reads
    most = _MOST_LANES_WITH_READS if reads else most
    for tall in (4, 2):
        columns = piece / tall
        narrowest = _NARROWEST_OF_FOUR if reads or tall == 4 else _NARROWEST
        lanes = _power(plan.columns / columns * _LANES_FROM)
        own = columns_of(plan.columns, lanes)
        # Six columns are wide enough though the piece may be a little less than 24.
        wide = columns >= narrowest or (tall == 4 and columns > 5 and own == 6)
        # Twice seven of two rows can be read in pairs.
        better = tall == 4 and own == 7 and not reads and plan.columns % 2 == 0
        if wide and not better and lanes <= most and (piece > _LEAST_WITH_READS or not reads):
            return lanes, tall
    return min(WARP, _power(plan.columns / piece * _LANES_FROM)), 1


def _lower(plan: Plan, lanes: int, tall: int) -> tuple[int, int]:
    """Return a tile of the backward pass with three rows of a lane for four, if as many warps run.

    It keeps three numbers for each that a lane has.
    """
    rows, columns = WARP // lanes, columns_of(plan.columns, lanes)
    warps = math.ceil(plan.rows / (3 * rows))
    enough = 3 * warps <= 4 * math.ceil(plan.rows / (4 * rows))
    room = 3 * columns <= _ROOM_OF_THREE or warps >= _WARPS_OF_TWO
    large = 4 * columns > _WITH_THREE_ROWS
    return (lanes, 3) if tall == 4 and large and enough and room else (lanes, tall)


def _shared_out(plan: Plan, piece: float, heads: int, device: Limits) -> tuple[int, int]:
    """Return the tile of a forward pass, half as large if schedulers then share evenly."""
    schedulers = device.multiprocessors * SCHEDULERS

    def size(tile: tuple[int, int]) -> int:
        return columns_of(plan.columns, tile[0]) * tile[1]

    def warps(tile: tuple[int, int]) -> int:
        return math.ceil(plan.rows / (WARP // tile[0] * tile[1]))

    def busiest(tile: tuple[int, int]) -> float:
        at_once = 2 if size(tile) > _LARGE else 1
        turns = math.ceil(heads * warps(tile) / (schedulers * at_once))
        return turns * at_once * (size(tile) + _ONCE)

    whole, half = (
        _filled(plan, *_tile(plan, p, most=_MOST_LANES_FORWARD), p) for p in (piece, piece / 2)
    )
    if size(whole) < _HALVED_FROM or warps(half) > _MOST_FORWARD_WARPS:
        return whole
    least = busiest(whole) * (1 if size(whole) > _LARGE else _WORTH_HALVING)
    return half if busiest(half) < least else whole


def _filled(plan: Plan, lanes: int, tall: int, piece: float) -> tuple[int, int]:
    """Return a tile of much the same size whose warps have fewer rows that no head has.

    Three rows of a lane fill 24, of which one, two and four leave a quarter of the warps idle.
    """

    def size(way: tuple[int, int]) -> int:
        return columns_of(plan.columns, way[0]) * way[1]

    def covered(way: tuple[int, int]) -> int:
        rows = WARP // way[0] * way[1]
        return math.ceil(plan.rows / rows) * rows

    def work(way: tuple[int, int]) -> float:
        return covered(way) * way[0] * columns_of(plan.columns, way[0]) * (1 + _ONCE / size(way))

    found = (lanes, tall)
    ways = [(lanes, 1), (lanes, 2), (lanes, 3), (min(WARP, 2 * lanes), 3)]
    fuller = [way for way in ways if _FULLER * covered(way) <= covered(found)]
    smallest, largest = _SIZES_NEAR
    near = [way for way in fuller if smallest <= size(way) / piece <= largest]
    best = min(near, key=work, default=found)
    # Sources that are read number by number take more than what is saved.
    worth = plan.rows >= WARP // 2 and plan.columns % 4 == 0
    return best if worth and work(best) <= _WORTH_FILLING * work(found) else found


def columns_of(n: int, lanes: int) -> int:
    """Return how many of a row's columns a lane holds, padding with them."""
    vector = vector_of(n, lanes)
    columns: int = math.ceil(math.ceil(n / lanes) / vector) * vector
    return columns


def vector_of(n: int, lanes: int) -> int:
    """Return how many neighboring columns a lane reads at once: the most without more padding."""
    exact = math.ceil(n / lanes)
    return next(vector for vector in (4, 2, 1) if exact % vector == 0)


def _power(least: float) -> int:
    """Return the least power of two that is no smaller."""
    return 1 << max(0, math.ceil(math.log2(least)))
