"""Cell E60: a residual step of learned size, normalized after each step."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="e60",
    engine="dense",
    layer="elman.models.cells.dense.e60_layer:E60",
    equation="h' = rmsnorm(h + alpha tanh(W_h h + W_x u + b)), out = h' silu(h')",
    source="vector-state specification 3.12",
    options={
        "tied": Option(False, "one Xavier matrix for input and state, W_x = W_h", size=True),
        **skeleton_options(),
    },
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
