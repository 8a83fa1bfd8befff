"""Cell E60b: as E60, its step sized by a gate of the input."""

from __future__ import annotations

from elman.models.registry.skeleton import skeleton_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e60b",
    engine="dense",
    layer="elman.models.layers.e60b:E60b",
    equation="h' = rmsnorm(h + g tanh(W_h h + W_x u + b)), g = sigma(W_g u + b_g)",
    source="vector-state specification 3.12",
    options=skeleton_options(),
    rule=wide_enough,
)
