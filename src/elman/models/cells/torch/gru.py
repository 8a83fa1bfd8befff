"""Cell GRU: PyTorch's own, with the reset gate after the matrix."""

from __future__ import annotations

from collections.abc import Mapping

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Value


def _no_resets(options: Mapping[str, Value]) -> str:
    return "PyTorch's own network carries its state through the whole row"


CELL = Cell(
    name="gru",
    engine="torch",
    layer="elman.models.cells.torch.rnn_layer:GRU",
    equation=(
        "[r; z] = sigmoid(W x + b + U h + c), "
        "h' = z h + (1 - z) tanh(W_n x + b_n + r (U_n h + c_n))"
    ),
    source="vector-state specification 5.1; lm-and-training specification 5.4",
    no_resets=_no_resets,
    options=skeleton_options(convolution=False, normal=None),
    backends=("torch",),
    rule=wide_enough,
)
