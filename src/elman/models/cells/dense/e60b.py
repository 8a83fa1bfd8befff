"""Cell E60b: as E60, its step sized by a gate of the input."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e60b",
    engine="dense",
    layer="elman.models.cells.dense.e60b_layer:E60b",
    equation="h' = rmsnorm(h + g tanh(W_h h + W_x u + b)), g = sigma(W_g u + b_g)",
    source="vector-state specification 3.12",
    options=skeleton_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
