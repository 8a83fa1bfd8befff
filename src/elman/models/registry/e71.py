"""Cell E71: a row gate that reads the state."""

from __future__ import annotations

from elman.models.registry.matrix import matrix_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e71",
    engine="matrix_state",
    layer="elman.models.layers.e71:E71",
    equation="a = sigmoid(W_a c + d o S k + b), S' = a > S + (1 - a) > v k^T, out = y silu(y)",
    source="seed 001; matrix-state specification 6",
    options=matrix_options(),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
