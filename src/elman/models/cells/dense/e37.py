"""Cell E37: one matrix for input and state, self gate. E37v2 is the same function."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import dense_options

CELL = Cell(
    name="e37",
    engine="dense",
    layer="elman.models.cells.dense.e37_layer:E37",
    equation="h' = tanh(W (u + h) + b), out = h' h' sigmoid(h')",
    source="seed 004; vector-state specification 3.8",
    options=dense_options(0.99, "0.999 times an orthogonal one"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
