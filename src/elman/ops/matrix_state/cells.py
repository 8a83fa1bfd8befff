"""The cells of the matrix-state engine, as plans name them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MatrixCell:
    """One cell: how its new state follows from the old one.

    Args:
        type: Its structure in csrc/cells/matrix_state.h (C++, namespace elman), or None: it runs on
            the reference alone.
        gates: How many gate logits a row has: roles ``g0``, ``g1``.
        parameters: How many parameters a row has: ``p0``, ``p1``, ``p2``, each [heads, rows].
        reads: Whether it reads the old state with a key.
        column: Whether z scales the columns of the old state.
        code: The structure itself, where it is not one of that file: a cell of another package.
    """

    type: str | None
    gates: int = 0
    parameters: int = 0
    reads: bool = False
    column: bool = False
    code: str = ""


CELLS: dict[str, MatrixCell] = {
    # S' = phi(c S + w k^T), w = v; c is the decay, act(g0 [+ p0]), z_j, or a product of them.
    "decayed": MatrixCell("Decayed"),
    "forgetting": MatrixCell("RowGated<Act::sigmoid, false>", gates=1),
    **{
        f"row_gated_{act}": MatrixCell(f"RowGated<Act::{act}, true>", gates=1, parameters=1)
        for act in ("sigmoid", "tanh", "none")
    },
    **{
        f"full_gated_{act}": MatrixCell(
            f"RowGated<Act::{act}, true, true>", gates=1, parameters=1, column=True
        )
        for act in ("sigmoid", "tanh", "none")
    },
    "column_gated": MatrixCell("ColumnGated", column=True),
    "averaged": MatrixCell("Averaged", gates=1, parameters=1),
    # The delta rule, w from v - r.
    "delta": MatrixCell("Delta", reads=True),
    "row_gated_delta": MatrixCell("RowGatedDelta", gates=1, parameters=1, reads=True),
    **{
        f"scaled_read_delta_{act}": MatrixCell(
            f"ScaledReadDelta<Act::{act}>", gates=1, parameters=1, reads=True
        )
        for act in ("sigmoid", "tanh", "none")
    },
    "write_gated_delta": MatrixCell("WriteGatedDelta", gates=1, parameters=1, reads=True),
    "error_gated_delta": MatrixCell(None, gates=1, parameters=1, reads=True),
    "state_gated_delta": MatrixCell("EnergyGatedDelta<false>", parameters=2, reads=True),
    "retain_gated_delta": MatrixCell("EnergyGatedDelta<true>", parameters=2, reads=True),
    # Gates that read the state.
    "read_gated": MatrixCell("ReadGated", gates=1, parameters=2, reads=True),
    "value_gated": MatrixCell("ValueGated<false>", gates=1, parameters=3, reads=True),
    "value_gated_inverse": MatrixCell("ValueGated<true>", gates=1, parameters=3, reads=True),
    # Elements that are not c S + w k.
    "erase_write": MatrixCell("EraseWrite", gates=2, parameters=2),
    "residual": MatrixCell("Residual", parameters=1, reads=True),
}
"""By the name that plans use; the equations stand in csrc/cells/matrix_state.h and, a second time,
in :mod:`elman.ops.matrix_state.reference`."""
