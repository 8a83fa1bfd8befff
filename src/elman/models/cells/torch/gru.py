"""Cell GRU: PyTorch's own network on this project's kernels, with the reset gate after the matrix.

On a GPU they stand in place of cuDNN's.
"""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell
from elman.models.cells.torch.rnn_options import OPTIONS, path

CELL = Cell(
    name="gru",
    engine="torch",
    layer="elman.models.cells.torch.rnn_layer:GRU",
    equation=(
        "[r; z] = sigmoid(W x + b + U h + c), "
        "h' = z h + (1 - z) tanh(W_n x + b_n + r (U_n h + c_n))"
    ),
    source="vector-state specification 5.1; lm-and-training specification 5.4",
    options=OPTIONS,
    backends=("torch", "cpu", "cuda"),
    rule=wide_enough,
    path=path,
)
