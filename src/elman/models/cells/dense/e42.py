"""Cell E42: linear recurrence, one matrix for input and state, self gate."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import dense_options

CELL = Cell(
    name="e42",
    engine="dense",
    layer="elman.models.cells.dense.e42_layer:E42",
    equation="h' = W u + W h + b, out = h' h' sigmoid(h')",
    source="seed 004; vector-state specification 3.10",
    options=dense_options(0.999, "spectral_radius times an orthogonal one"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
