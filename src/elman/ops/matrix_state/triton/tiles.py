"""Chooses the tiles of the Triton kernels: rows, columns and warps of a program.

A tile is the part of a state that a program holds. It is an argument of the kernels.
Imports neither torch nor triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.recurrences import CELLS


@dataclass(frozen=True)
class Tile:
    """The part of a state that a program holds in registers.

    Attributes:
        rows: Its rows, a power of two; the last tile of a head may have fewer.
        columns: All columns of the state, padded to a power of two.
        row_tiles: Tiles of a head.
        steps: Steps between two checkpoints.
        group: Steps whose numbers are loaded together, a power of two that divides ``steps``.
        warps: Warps of a program.
        spread: Whether every thread loads itself what its part of the state needs of a key.
        overlapped: Whether the backward pass computes the states of a segment again while it walks
            back over the segment after it.
        folds: Parts that the columns are folded into: the tile is [folds, rows, columns / folds].
            A thread of a wide tile then has columns of one row, and not of several.
    """

    rows: int
    columns: int
    row_tiles: int
    steps: int
    group: int
    warps: int
    spread: bool = False
    overlapped: bool = False
    folds: int = 1

    @property
    def kept_steps(self) -> int:
        """Steps whose states a program of the backward pass keeps in memory."""
        return 2 * self.steps if self.overlapped else self.steps


# Rows of a program and steps of a group, the fastest on an H200 or an H100, by columns: a state
# has those of the smallest number that is not below its own. 24, 48 and 96 stand where a quarter of
# the padded columns is empty and other tiles are faster. In the backward pass each tile leaves a
# part of the gradients on columns in memory. With few heads low tiles are faster all the same:
# more programs fill the GPU. With many heads the parts of low tiles would take as long as the
# steps. 256 was not timed: it has as many numbers a thread as 128. Going back, larger groups, (2,
# 8) for 16 and 64, are up to a quarter faster with few heads, and compile for up to a minute.
# Neither batch nor length is asked.
_FORWARD = {16: (2, 8), 32: (2, 8), 64: (2, 8), 96: (2, 4), 128: (4, 4), 256: (2, 4)}
_FORWARD_OF_COLUMN = _FORWARD | {16: (4, 8), 24: (4, 8)}
_FORWARD_OF_READS = _FORWARD | {16: (4, 8), 32: (4, 8)}
_FORWARD_FOLDED = _FORWARD_OF_READS | {96: (4, 4), 128: (4, 2)}  # (4, 4) would spill at 128
_FORWARD_OF_MANY_HEADS = {16: (16, 8), 32: (16, 2), 64: (8, 2), 128: (4, 2), 256: (2, 4)}
_BACKWARD = {16: (4, 4), 32: (4, 4), 64: (2, 4), 96: (4, 4), 128: (4, 2), 256: (2, 2)}
_BACKWARD_DELTA = _BACKWARD | {16: (2, 4)}  # the delta rule has no parameters of rows
_BACKWARD_OF_GATES = _BACKWARD | {96: (4, 2)}
_BACKWARD_OF_Z = {64: (4, 2)}  # one gradient more on the columns, of which low tiles leave parts
_BACKWARD_OF_COLUMN = {48: (2, 4)}
_BACKWARD_OF_MANY_HEADS = {16: (16, 4), 32: (16, 2), 64: (8, 4), 128: (4, 2), 256: (4, 2)}
MANY_HEADS = 4
_PREPARED_VALUES = 64  # columns: values of smaller states are prepared as fast in the loop
_MOST_PREPARED = 512  # numbers of a tile: with larger ones the loop spills
_WARPS = 1  # a sum over rows or columns then needs no barrier; two to four took twice as long
_STEPS = 16
_LARGE_STEPS = 8  # where the states of a segment would take much memory
_MOST_OVERLAPPED = 64  # columns: larger states do not leave the registers that it takes
_MOST_SPREAD = 256  # numbers of a tile: a thread has two rows, and would load a key for each
_NUMBERS_OF_A_LOAD = 128  # of a warp: four in each thread
_SPREAD_COLUMNS = 64  # more: every thread would load four of each key
_FOLDED_COLUMNS = range(17, 129)  # of E88 with 16 columns a program has whole heads
MOST_COLUMNS = max(_FORWARD)


def tile_of(plan: Plan, *, backward: bool) -> Tile:
    """Return the tile of a pass, chosen from the sizes of a state, its cell and number of heads.

    Args:
        plan: What is computed, of :data:`MOST_COLUMNS` columns at most.
        backward: Which pass.
    """
    columns = max(min(_FORWARD), power_of_two(plan.columns))
    sizes = _sizes(plan, backward=backward)
    most, group = sizes[min(size for size in sizes if size >= plan.columns)]
    rows = min(most, power_of_two(plan.rows))
    tiles = -(-plan.rows // rows)
    steps = _STEPS if columns < MOST_COLUMNS else _LARGE_STEPS
    folded = not backward and tiles > 1 and _folds(plan) and plan.columns in _FOLDED_COLUMNS
    folds = folds_of(rows, columns) if folded else 1
    small = rows * columns <= _MOST_SPREAD and columns <= _SPREAD_COLUMNS
    spread = folds > 1 or (small and tiles > 1)
    # With many heads a GPU has other programs to run while one waits.
    overlapped = backward and columns <= _MOST_OVERLAPPED and plan.heads < MANY_HEADS
    return Tile(rows, columns, tiles, steps, group, _WARPS, spread, overlapped, folds)


def _folds(plan: Plan) -> bool:
    """Return whether a cell gains from folded columns: where steps wait for a sum over them.

    With z, a thread would have three vectors in registers. Those that do not read the state gain
    nothing.
    """
    return CELLS[plan.cell].reads and "z" not in dict(plan.roles)


def _sizes(plan: Plan, *, backward: bool) -> dict[int, tuple[int, int]]:
    if plan.heads >= MANY_HEADS:
        return _BACKWARD_OF_MANY_HEADS if backward else _FORWARD_OF_MANY_HEADS
    cell = CELLS[plan.cell]
    if backward:
        found = _BACKWARD_OF_GATES if cell.gates else _BACKWARD
        found = _BACKWARD_DELTA if cell.reads and cell.decays else found
        found = found | _BACKWARD_OF_Z if "z" in dict(plan.roles) else found
        return found | _BACKWARD_OF_COLUMN if cell.column else found
    if cell.reads:
        return _FORWARD_FOLDED if _folds(plan) else _FORWARD_OF_READS
    return _FORWARD_OF_COLUMN if cell.column else _FORWARD


def reads_are_kept(plan: Plan) -> bool:
    """Return whether the forward pass keeps what every step reads of the old state.

    The states of a segment are then computed again without a sum over columns, which each step
    would wait for. With many heads other programs run meanwhile, and what is kept, a number in fp32
    for each row and step, would be as much as a third of all that training keeps.
    """
    return CELLS[plan.cell].reads and plan.heads < MANY_HEADS


def prepared_of(plan: Plan, tile: Tile, *, backward: bool) -> tuple[str, ...]:
    """Return the roles that are prepared before the loop over time.

    They are those that several row tiles would prepare again. Going back, one tile would, too: for
    the states, for the walk, and for the derivative. Values are those of one tile, but every thread
    of a row prepares them.
    """
    if tile.row_tiles == 1 and not backward:
        return ()
    apart = plan.heads >= MANY_HEADS and tile.columns >= _PREPARED_VALUES
    apart &= tile.rows * tile.columns <= _MOST_PREPARED
    found = [
        ("k", plan.k_unit or plan.k_act != "none"),
        ("q", plan.q_unit or plan.q_act != "none"),
        ("z", plan.z_act != "none"),
        ("v", plan.v_act != "none" and backward and apart),
        ("decay", plan.decay in ("sigmoid", "mamba")),
    ]
    return tuple(name for name, wanted in found if wanted)


def folds_of(rows: int, columns: int) -> int:
    """Return into how many parts the columns of a tile are folded, so that a thread has one row."""
    return max(1, rows * power_of_two(columns) // _NUMBERS_OF_A_LOAD)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below ``number``."""
    return 1 << (number - 1).bit_length()
