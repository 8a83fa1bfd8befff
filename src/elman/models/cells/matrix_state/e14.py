"""Cell E14: a matrix of outer products, one forget gate for each row, gated by a second branch."""

from __future__ import annotations

from elman.models.cells.common.options import DROPOUT, expansion
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

_OPTIONS = {
    "n_state": Option(0, "columns of the state; 0 is as many as it has rows", minimum=0, size=True),
    "expansion": expansion("rows of the state"),
    "decay_init": Option(
        3.0, "initial bias of the forget gate; 3 is a decay of 0.953", in_kernel=False
    ),
    "dropout": DROPOUT,
}

CELL = Cell(
    name="e14",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e14_layer:E14",
    equation="S' = decay > S + tanh(W_key c) (x) W_val c, out = (S' q) silu(z)",
    source="seed 000; matrix-state specification 3",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
