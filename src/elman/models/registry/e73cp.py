"""Cell E73cp: E73's delta rule with z not squashed, trained with state checkpoints."""

from __future__ import annotations

from elman.models.registry.e73 import VARIANT
from elman.models.registry.matrix import matrix_options
from elman.models.registry.spec import Cell
from elman.models.registry.width import wide_enough

CELL = Cell(
    name="e73cp",
    engine="matrix_state",
    layer="elman.models.layers.e73cp:E73cp",
    equation="S' = tanh(S + (v - (S o Z) k) k^T), y = S' q, out = y silu(y)",
    source="seed 004; matrix-state specification 8",
    options=matrix_options() | {"variant": VARIANT},
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
