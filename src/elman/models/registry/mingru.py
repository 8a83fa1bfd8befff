"""Cell minGRU: a GRU whose gate and candidate do not see the state."""

from __future__ import annotations

from elman.models.registry.channel import minimal_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="mingru",
    engine="channel",
    layer="elman.models.layers.mingru:MinGRU",
    equation="h' = (1 - z) h + z g(W x), z = sigmoid(W x), g > 0, out = h'",
    source="vector-state specification 5.3; lm-and-training specification 5.4",
    options=minimal_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
