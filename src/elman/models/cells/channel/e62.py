"""Cell E62: each channel is overwritten where a gate of the input says so."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="e62",
    engine="channel",
    layer="elman.models.cells.channel.e62_layer:E62",
    equation="h' = (1 - k) h + k tanh(W u + b), k = sigmoid(W u + b), out = h' silu(h')",
    source="seed 004; vector-state specification 4.2",
    options=channel_options()
    | {
        "variant": Option(
            "plain",
            "what is kept: plain (1 - k) h; decay a (1 - k) h, a = sigmoid(W u + b); tied as "
            "plain with k = sigmoid(-q) and tanh(q) of one matrix",
            choices=("plain", "decay", "tied"),
            size=True,
        ),
    },
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
