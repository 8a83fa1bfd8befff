"""Cell E68: gated update whose candidate is gated by the state of its own channel."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="e68",
    engine="channel",
    layer="elman.models.cells.channel.e68_layer:E68",
    equation="h' = a h + (1 - a) tanh(W u + b) sigmoid(c h + b), out = h' silu(h')",
    source="seed 004; vector-state specification 4.8",
    options=channel_options()
    | {
        "variant": Option(
            "plain",
            "the candidate's gate: plain sigmoid(c h + b); inverse sigmoid(-c |h| + b)",
            choices=("plain", "inverse"),
        ),
    },
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
