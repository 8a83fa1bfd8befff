"""Cell E74 with a fixed decay: a linear delta rule that forgets at one rate."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.matrix_state.options import matrix_options

_OPTIONS = matrix_options(mamba2_init=False) | {
    "learned_decay": Option(False, "learn the decay as sigmoid(l), l = 2.2 at first", size=True),
    "decay": Option(
        0.9, "decay of the state in a step", minimum=0, maximum=1, needs={"learned_decay": False}
    ),
    "dropout": Option(0.0, "dropout of the layer's output", minimum=0, maximum=1, in_kernel=False),
}

CELL = Cell(
    name="e74_fixed_decay",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e74_fixed_decay_layer:E74FixedDecay",
    equation="S' = decay S + (v - S k) k^T, y = S' q, out = y silu(y)",
    source="matrix-state specification 9",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
