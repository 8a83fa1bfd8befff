"""Cell E33: Elman recurrence whose output gates itself."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import dense_options

CELL = Cell(
    name="e33",
    engine="dense",
    layer="elman.models.cells.dense.e33_layer:E33",
    equation="h' = tanh(W_x u + W_h h + b), out = h' h' sigmoid(h')",
    source="seed 004; vector-state specification 3.5",
    options=dense_options(0.99, "0.999 times an orthogonal one"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
