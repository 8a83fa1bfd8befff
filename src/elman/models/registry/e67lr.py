"""Cell E67lr: a retain gate that reads the state through a low-rank product."""

from __future__ import annotations

from elman.models.registry.dense import rank_option
from elman.models.registry.skeleton import skeleton_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e67lr",
    engine="dense",
    layer="elman.models.layers.e67lr:E67lr",
    equation="h' = al h + (1 - al) tanh(W_x u + b), al = sigma(U V h + W_a u + b_a)",
    source="vector-state specification 4.7",
    options={**rank_option("max(D // 8, 8)"), **skeleton_options()},
    rule=wide_enough,
)
