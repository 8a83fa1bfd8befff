"""Cell E66: gated mix of the state and a candidate that reads it through a low-rank product."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import rank_option

CELL = Cell(
    name="e66",
    engine="dense",
    layer="elman.models.cells.dense.e66_layer:E66",
    equation="h' = al h + (1 - al) tanh(U V h + W_x u + b), al = sigma(W_a u + b_a)",
    source="seed 004; vector-state specification 4.6",
    options={**rank_option("max(D // 4, 16)"), **skeleton_options()},
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
