"""Cell E34: one recurrent coefficient for each channel, held within 0.99."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e34",
    engine="channel",
    layer="elman.models.cells.channel.e34_layer:E34",
    equation="h' = tanh(W u + c h + b), c within 0.99, out = h' silu(h')",
    source="seed 004; vector-state specification 3.6",
    options=channel_options(", as the cell's matrix; coefficients 0.99"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
