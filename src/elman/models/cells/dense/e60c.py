"""Cell E60c: as a GRU without a reset gate, no norm."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e60c",
    engine="dense",
    layer="elman.models.cells.dense.e60c_layer:E60c",
    equation="h' = f h + (1 - f) tanh(W_h h + W_x u + b), f = sigma(U_f h + W_f u + b_f)",
    source="vector-state specification 3.12",
    options=skeleton_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
