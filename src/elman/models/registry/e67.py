"""Cell E67: gated update whose gate sees the state, scaled for each channel."""

from __future__ import annotations

from elman.models.registry.channel import channel_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e67",
    engine="channel",
    layer="elman.models.layers.e67:E67",
    equation="h' = a h + (1 - a) tanh(W u + b), a = sigmoid(W u + c h + b), out = h' silu(h')",
    source="seed 004; vector-state specification 4.7",
    options=channel_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
