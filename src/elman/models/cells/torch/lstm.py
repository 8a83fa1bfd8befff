"""Cell LSTM: PyTorch's own."""

from __future__ import annotations

from collections.abc import Mapping

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Value


def _no_resets(options: Mapping[str, Value]) -> str:
    return "PyTorch's own network carries its state through the whole row"


CELL = Cell(
    name="lstm",
    engine="torch",
    layer="elman.models.cells.torch.rnn_layer:LSTM",
    equation=(
        "[i; f; o; q] = W x + b + U h + d, c' = sigmoid(f) c + sigmoid(i) tanh(q), "
        "h' = sigmoid(o) tanh(c')"
    ),
    source="vector-state specification 5.2; lm-and-training specification 5.4",
    no_resets=_no_resets,
    options=skeleton_options(convolution=False, normal=None),
    backends=("torch",),
    rule=wide_enough,
)
