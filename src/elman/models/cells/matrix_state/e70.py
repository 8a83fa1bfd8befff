"""Cell E70: decaying outer products, with tanh (seed) or linear with spectrally normed keys."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.matrix_state.options import matrix_options

_OPTIONS = matrix_options(expansion=2.0) | {
    "linear_state": Option(
        False, "leave out the tanh around the new state (with spectral norm: from 2026-01-15)"
    ),
    "projection_norm": Option(
        "none",
        "constraint of W_k and W_v: spectral rescales each to spectral_radius",
        choices=("none", "spectral"),
    ),
    "spectral_radius": Option(
        0.5,
        "largest singular value of W_k and of W_v",
        above=0,
        needs={"projection_norm": "spectral"},
    ),
    "learned_decay": Option(
        True,
        "learn the decay; off holds it at 0.9, as in every published run, where no gradient "
        "reached it: a frozen parameter, still counted",
    ),
}

CELL = Cell(
    name="e70",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e70_layer:E70",
    equation="S' = tanh(decay S + v k^T), y = S' q, out = y silu(y)",
    source="seed 001; matrix-state specification 5",
    options=_OPTIONS,
    backends=("reference", "cpu", "triton", "cuda"),
    rule=wide_enough,
)
