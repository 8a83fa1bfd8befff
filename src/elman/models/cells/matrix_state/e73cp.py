"""Cell E73cp: E73's delta rule with z not squashed, trained with state checkpoints."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.matrix_state.e73 import VARIANT
from elman.models.cells.matrix_state.options import matrix_options

CELL = Cell(
    name="e73cp",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e73cp_layer:E73cp",
    equation="S' = tanh(S + (v - (S o Z) k) k^T), y = S' q, out = y silu(y)",
    source="seed 004; matrix-state specification 8",
    options=matrix_options() | {"variant": VARIANT},
    backends=("reference", "cpu", "triton", "cuda"),
    rule=wide_enough,
)
