"""Cell E59: a running sum of projected inputs, normalised after each step."""

from __future__ import annotations

from elman.models.registry.channel import channel_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e59",
    engine="channel",
    layer="elman.models.layers.e59:E59",
    equation="h' = rmsnorm(h + alpha (W u + b)), out = h' silu(h')",
    source="vector-state specification 3.12",
    options=channel_options(),
    rule=wide_enough,
    reason="every step normalises over all channels",
)
