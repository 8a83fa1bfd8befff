"""Cell E64: gated update whose candidate adds the state as it is."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e64",
    engine="channel",
    layer="elman.models.cells.channel.e64_layer:E64",
    equation="h' = a h + (1 - a) tanh(h + W u + b), a = sigmoid(W u + b), out = h' silu(h')",
    source="seed 004; vector-state specification 4.4",
    options=channel_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
