"""Cell E67lr: a retain gate that reads the state through a low-rank product."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.dense.options import rank_option

CELL = Cell(
    name="e67lr",
    engine="dense",
    layer="elman.models.cells.dense.e67lr_layer:E67lr",
    equation="h' = al h + (1 - al) tanh(W_x u + b), al = sigma(U V h + W_a u + b_a)",
    source="vector-state specification 4.7",
    options={**rank_option("max(D // 8, 8)"), **skeleton_options()},
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
