"""Cell E39: recurrence without an input matrix and without a bias, self gate."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import dense_options

CELL = Cell(
    name="e39",
    engine="dense",
    layer="elman.models.cells.dense.e39_layer:E39",
    equation="h' = tanh(u + W_h h), out = h' h' sigmoid(h')",
    source="seed 004; vector-state specification 3.9",
    options=dense_options(0.99, "0.999 times an orthogonal one"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
