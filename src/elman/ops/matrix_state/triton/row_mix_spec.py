"""What M2RNN's Triton kernels are compiled for, and which sizes they have.

Imports neither torch nor triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from elman.ops.matrix_state.triton.spec import Tile, power_of_two

MOST_ROWS, MOST_COLUMNS = 32, 64
"""Of a state: it stays in the registers of a program, and W, its transpose and the gradient of W
with it."""
LEAST = 16
"""Rows and columns of a factor that tensor cores multiply."""
_STEPS = 16
_OF_A_WARP = 256


@dataclass(frozen=True)
class MixSpec:
    """What is computed.

    Attributes:
        heads: States side by side.
        rows: Value rows of a state, which W mixes.
        columns: Key columns of a state.
        fast: Whether tanh is NVIDIA's own instruction and factors of products are TF32.
    """

    heads: int
    rows: int
    columns: int
    fast: bool


def size_problem(rows: int, columns: int) -> str:
    """Return why the kernels do not have a state of this size; empty if they do."""
    if rows <= MOST_ROWS and columns <= MOST_COLUMNS:
        return ""
    return (
        f"its kernels hold a state of {MOST_ROWS} value rows and {MOST_COLUMNS} key columns at "
        f"most, and this one has {rows} and {columns}"
    )


def mix_tile(rows: int, columns: int, *, backward: bool) -> Tile:
    """Return the tile of a pass: the whole state.

    Args:
        rows: Value rows of a state, :data:`MOST_ROWS` at most.
        columns: Key columns, :data:`MOST_COLUMNS` at most.
        backward: Which pass.
    """
    held_rows, held_columns = (power_of_two(max(LEAST, size)) for size in (rows, columns))
    warps = min(8, held_rows * held_columns // _OF_A_WARP)
    return Tile(held_rows, held_columns, 1, _STEPS, 2 if backward else 4, warps)
