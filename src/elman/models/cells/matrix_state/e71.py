"""Cell E71: a row gate that reads the state."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.matrix_state.options import matrix_options

CELL = Cell(
    name="e71",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e71_layer:E71",
    equation="a = sigmoid(W_a c + d o S k + b), S' = a > S + (1 - a) > v k^T, out = y silu(y)",
    source="seed 001; matrix-state specification 6",
    options=matrix_options(),
    backends=("reference", "cpu", "triton", "cuda"),
    rule=wide_enough,
)
