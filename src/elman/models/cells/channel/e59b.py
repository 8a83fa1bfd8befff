"""Cell E59b: like E59, but each input is weighted by its own gate."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e59b",
    engine="channel",
    layer="elman.models.cells.channel.e59b_layer:E59b",
    equation="h' = rmsnorm(h + g (W u + b)), g = sigmoid(W_g u + b_g), out = h' silu(h')",
    source="vector-state specification 3.12",
    options=channel_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
