"""Cell E73: the state is modulated element by element inside the tanh."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.matrix_state.options import matrix_options

VARIANT = Option(
    "column",
    "elements of the modulation Z: column z_j, row z_i, full z_i z_j",
    choices=("column", "row", "full"),
)

_OPTIONS = matrix_options() | {
    "variant": VARIANT,
    "rule": Option(
        "modulated",
        "what Z scales: modulated the state that is kept; delta the state that is read, "
        "whose key is then normalized",
        choices=("modulated", "delta"),
    ),
    "z_activation": Option(
        "sigmoid",
        "activation of z: sigmoid (seed, bias 2), tanh (from 2026-01-15, bias 1), none (bias 1)",
        choices=("sigmoid", "tanh", "none"),
    ),
}

CELL = Cell(
    name="e73",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e73_layer:E73",
    equation="S' = tanh(S o Z + v k^T), y = S' q, out = y silu(y)",
    source="seed 001; matrix-state specification 8",
    options=_OPTIONS,
    backends=("reference", "cpu", "triton", "cuda"),
    rule=wide_enough,
)
