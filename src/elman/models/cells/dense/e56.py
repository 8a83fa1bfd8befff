"""Cell E56: Elman recurrence with one matrix over input and state, and a silu gate."""

from __future__ import annotations

from elman.models.cells.common.options import DROPOUT, expansion
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="e56",
    engine="dense",
    layer="elman.models.cells.dense.e56_layer:E56",
    equation="h' = tanh(W [u; h] + b), out = h' silu(z)",
    source="seed 004; vector-state specification 3.11",
    options={
        "expansion": expansion(),
        "mamba2_init": Option(
            "none",
            "initial weights: none Xavier; normal N(0, 0.02^2), the half of the matrix on the "
            "state 0.999 times an orthogonal one",
            choices=("none", "normal"),
            in_kernel=False,
        ),
        "dropout": DROPOUT,
    },
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
