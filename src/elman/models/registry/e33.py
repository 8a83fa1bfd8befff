"""Cell E33: Elman recurrence whose output gates itself."""

from __future__ import annotations

from elman.models.registry.dense import dense_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e33",
    engine="dense",
    layer="elman.models.layers.e33:E33",
    equation="h' = tanh(W_x u + W_h h + b), out = h' h' sigmoid(h')",
    source="seed 004; vector-state specification 3.5",
    options=dense_options(0.99, "0.999 times an orthogonal one"),
    rule=wide_enough,
)
