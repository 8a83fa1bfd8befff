"""Cell LSTM: PyTorch's own network, on a GPU with this project's kernels in place of cuDNN's."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.torch.rnn_options import OPTIONS, path

CELL = Cell(
    name="lstm",
    engine="torch",
    layer="elman.models.cells.torch.rnn_layer:LSTM",
    equation=(
        "[i; f; o; q] = W x + b + U h + d, c' = sigmoid(f) c + sigmoid(i) tanh(q), "
        "h' = sigmoid(o) tanh(c')"
    ),
    source="vector-state specification 5.2; lm-and-training specification 5.4",
    options=OPTIONS,
    backends=("torch", "cuda"),
    rule=wide_enough,
    path=path,
)
