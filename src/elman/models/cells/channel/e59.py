"""Cell E59: a running sum of projected inputs, normalized after each step."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e59",
    engine="channel",
    layer="elman.models.cells.channel.e59_layer:E59",
    equation="h' = rmsnorm(h + alpha (W u + b)), out = h' silu(h')",
    source="vector-state specification 3.12",
    options=channel_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
