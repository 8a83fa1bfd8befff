"""What M2RNN's Triton kernels are compiled for, and which sizes they have.

Imports neither torch nor triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from elman.ops.matrix_state.triton.tiles import Tile, power_of_two

MOST_ROWS, MOST_COLUMNS = 32, 64
"""Of a state. It stays in the registers of a program, beside W, its transpose and the gradient of
W; Triton's compiler keeps larger ones in memory instead."""
LEAST = 16
"""Rows and columns of the smallest factor that tensor cores multiply."""
STEPS = 16
"""Between two checkpoints."""
# Numbers of a state in a warp. Products in fp32 have no tensor cores, and more numbers in flight.
_OF_A_WARP = {True: 512, False: 128}
_MOST_WARPS = 8
_ONE_WARP_REGISTERS = 168
"""Three warps then fit where a GPU has 16384 registers: all heads of a usual batch at once."""


@dataclass(frozen=True)
class MixSpec:
    """What is computed.

    Attributes:
        heads: States side by side.
        rows: Value rows of a state, which W mixes.
        columns: Key columns of a state.
        fast: Whether tanh is NVIDIA's own instruction.
        split: Whether products have factors of two bf16 numbers each.
        widened: Whether those are widened first: Triton's interpreter cannot multiply bf16.
    """

    heads: int
    rows: int
    columns: int
    fast: bool
    split: bool
    widened: bool = False


def size_problem(rows: int, columns: int) -> str:
    """Return why the kernels do not have a state of this size; empty if they do.

    Args:
        rows: Value rows of a state.
        columns: Key columns.
    """
    if rows <= MOST_ROWS and columns <= MOST_COLUMNS:
        return ""
    return (
        f"its kernels hold a state of at most {MOST_ROWS} value rows and {MOST_COLUMNS} key "
        f"columns, this one has {rows} and {columns}"
    )


def mix_tile(spec: MixSpec, *, backward: bool) -> Tile:
    """Return the tile of a pass: the whole state, of a size that the kernels have.

    Args:
        spec: What is computed.
        backward: Which pass.
    """
    rows, columns = (power_of_two(max(LEAST, size)) for size in (spec.rows, spec.columns))
    warps = min(_MOST_WARPS, max(1, rows * columns // _OF_A_WARP[spec.split]))
    group = 1 if backward else 4 if warps == 1 else 2  # the backward pass has none
    return Tile(rows, columns, 1, STEPS, group, warps)


def register_limit(spec: MixSpec, tile: Tile, *, backward: bool) -> int | None:
    """Return the most registers of a thread, None for as many as the compiler likes.

    Args:
        spec: What is computed.
        tile: The tile of the pass.
        backward: Which pass.
    """
    small = tile.rows * tile.columns <= LEAST * LEAST
    return _ONE_WARP_REGISTERS if backward and spec.fast and small else None
