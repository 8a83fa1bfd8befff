"""Cell E61: input-dependent decay of each channel, linear in the state."""

from __future__ import annotations

from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="e61",
    engine="channel",
    layer="elman.models.cells.channel.e61_layer:E61",
    equation="h' = a h + (1 - a) (W u + b), a = sigmoid(W u + b), out = h' silu(h')",
    source="seed 004; vector-state specification 4.1",
    options=channel_options()
    | {
        "variant": Option(
            "plain",
            "the write: plain (1 - a) v; additive v, its matrix a tenth at first; tied "
            "(1 - a) tanh(q) with a = sigmoid(q), one matrix",
            choices=("plain", "additive", "tied"),
            size=True,
        ),
        "use_tanh": Option(False, "tanh around v", needs={"variant": "plain"}),
    },
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
