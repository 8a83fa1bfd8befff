"""Cell E63m: a matrix of slots whose values are computed from what is read."""

from __future__ import annotations

from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.matrix_state.options import matrix_options

_OPTIONS = matrix_options(mamba2_init=False) | {
    "n_state": Option(
        0,
        "slots: rows of the state, whose columns are the inner channels; 0 is as many as those, "
        "for lite the larger of 32 and the root of their number",
        minimum=0,
        size=True,
    ),
    "variant": Option(
        "full",
        "full; lite with a projection from slots to channels before the last one; rnn whose "
        "output depends on the output before",
        choices=("full", "lite", "rnn"),
        size=True,
    ),
}

CELL = Cell(
    name="e63m",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e63m_layer:E63m",
    equation="v = tanh(W_r tanh(S k) + W_x c + b), S' = a > S + (1 - a) > v k^T, out = tanh(S' q)",
    source="matrix-state specification 4",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
