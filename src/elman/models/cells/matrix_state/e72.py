"""Cell E72: the state gates the value that it is about to store."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.matrix_state.options import matrix_options

_OPTIONS = matrix_options() | {
    "variant": Option(
        "standard",
        "gate of the value: standard sigmoid(d r + b), inverse sigmoid(-d |r| + b)",
        choices=("standard", "inverse"),
    ),
}

RECURRENCES = {"standard": "value_gated", "inverse": "value_gated_inverse"}
"""By ``model.variant``: name in :data:`elman.ops.matrix_state.recurrences.CELLS`."""

CELL = Cell(
    name="e72",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e72_layer:E72",
    equation="g = sigmoid(d o S k + b), S' = a > S + (1 - a) > (v o g) k^T, out = y silu(y)",
    source="seed 001; matrix-state specification 7",
    options=_OPTIONS,
    backends=("reference", "cpu", "triton", "cuda"),
    rule=wide_enough,
)
