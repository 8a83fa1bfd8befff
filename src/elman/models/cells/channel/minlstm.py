"""Cell minLSTM: an LSTM whose normalized gates and candidate do not see the state."""

from __future__ import annotations

from elman.models.cells.channel.options import minimal_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="minlstm",
    engine="channel",
    layer="elman.models.cells.channel.minlstm_layer:MinLSTM",
    equation="h' = (f h + i g(W x)) / (f + i), f and i sigmoid(W x), g > 0, out = h'",
    source="vector-state specification 5.4; lm-and-training specification 5.4",
    options=minimal_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
