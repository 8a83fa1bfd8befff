"""Cell CudaLSTM: LSTM with one bias per gate."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="cudalstm",
    engine="dense",
    layer="elman.models.cells.dense.cudalstm_layer:CudaLSTM",
    equation=(
        "[f; i; o] = sigmoid(W x + U h + b), "
        "c' = f c + i tanh(W_q x + U_q h + b_q), h' = o tanh(c')"
    ),
    source="seed 004; vector-state specification 5.2",
    options=skeleton_options(convolution=False, normal=None),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
