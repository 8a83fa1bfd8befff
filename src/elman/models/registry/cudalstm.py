"""Cell CudaLSTM: LSTM with one bias per gate."""

from __future__ import annotations

from elman.models.registry.skeleton import skeleton_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="cudalstm",
    engine="dense",
    layer="elman.models.layers.cudalstm:CudaLSTM",
    equation=(
        "[f; i; o] = sigmoid(W x + U h + b), "
        "c' = f c + i tanh(W_q x + U_q h + b_q), h' = o tanh(c')"
    ),
    source="seed 004; vector-state specification 5.2",
    options=skeleton_options(convolution=False, normal=None),
    rule=wide_enough,
)
