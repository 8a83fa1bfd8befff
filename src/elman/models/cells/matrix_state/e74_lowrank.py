"""Cell E74 with a low-rank state: only the left factor learns."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.matrix_state.e74_reduced import reduced_options

CELL = Cell(
    name="e74_lowrank",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e74_lowrank_layer:E74LowRank",
    equation="U' = tanh(U + (v - U R^T k) (W_r k)^T), y = U' R^T q, R fixed, out = y silu(y)",
    source="matrix-state specification 9",
    options=reduced_options() | {"rank": Option(8, "columns of U and R", minimum=1, size=True)},
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
