"""Cell E67: gated update whose gate sees the state, scaled for each channel."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e67",
    engine="channel",
    layer="elman.models.cells.channel.e67_layer:E67",
    equation="h' = a h + (1 - a) tanh(W u + b), a = sigmoid(W u + c h + b), out = h' silu(h')",
    source="seed 004; vector-state specification 4.7",
    options=channel_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
