"""Cell CudaGRU: GRU whose reset gate acts before the matrix."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="cudagru",
    engine="dense",
    layer="elman.models.cells.dense.cudagru_layer:CudaGRU",
    equation=("[z; r] = sigmoid(W x + U h + b), h' = (1 - z) h + z tanh(W_n x + U_n (r h) + b_n)"),
    source="seed 004; vector-state specification 5.1",
    options=skeleton_options(convolution=False, normal=None),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
