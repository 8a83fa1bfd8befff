"""Cell E36: linear recurrence, self gate."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import dense_options

CELL = Cell(
    name="e36",
    engine="dense",
    layer="elman.models.cells.dense.e36_layer:E36",
    equation="h' = W_x u + W_h h + b, out = h' h' sigmoid(h')",
    source="seed 004; vector-state specification 3.7",
    options=dense_options(0.95, "0.95 times an orthogonal one", "0.95 to 0.99"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
