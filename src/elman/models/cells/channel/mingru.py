"""Cell minGRU: a GRU whose gate and candidate do not see the state."""

from __future__ import annotations

from elman.models.cells.channel.options import minimal_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="mingru",
    engine="channel",
    layer="elman.models.cells.channel.mingru_layer:MinGRU",
    equation="h' = (1 - z) h + z g(W x), z = sigmoid(W x), g > 0, out = h'",
    source="vector-state specification 5.3; lm-and-training specification 5.4",
    options=minimal_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
