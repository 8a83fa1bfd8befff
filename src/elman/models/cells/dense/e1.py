"""Cell E1: Elman recurrence with a silu gate from a split input projection."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import dense_options

CELL = Cell(
    name="e1",
    engine="dense",
    layer="elman.models.cells.dense.e1_layer:E1",
    equation="h' = tanh(W_x u + W_h h + b), out = h' silu(z)",
    source="seeds 003 and 004; vector-state specification 3.2",
    options=dense_options(0.99, "0.999 times an orthogonal one"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
