"""Cell E60c: as a GRU without a reset gate, no norm."""

from __future__ import annotations

from elman.models.registry.skeleton import skeleton_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e60c",
    engine="dense",
    layer="elman.models.layers.e60c:E60c",
    equation="h' = f h + (1 - f) tanh(W_h h + W_x u + b), f = sigma(U_f h + W_f u + b_f)",
    source="vector-state specification 3.12",
    options=skeleton_options(),
    rule=wide_enough,
)
