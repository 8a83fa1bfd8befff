"""Cell E1: Elman recurrence with a silu gate from a split input projection."""

from __future__ import annotations

from elman.models.registry.dense import dense_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e1",
    engine="dense",
    layer="elman.models.layers.e1:E1",
    equation="h' = tanh(W_x u + W_h h + b), out = h' silu(z)",
    source="seeds 003 and 004; vector-state specification 3.2",
    options=dense_options(0.99, "0.999 times an orthogonal one"),
    rule=wide_enough,
)
