"""Cell E75: delta rule with a forget gate for each value row, and a self gate."""

from __future__ import annotations

from elman.models.cells.common.options import D_CONV
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

_OPTIONS = {
    "n_heads": Option(
        4, "heads, each with its own state; 1 is the single-head form", minimum=1, size=True
    ),
    "n_state": Option(32, "rows and columns of a head's state", minimum=1, size=True),
    "expansion": Option(
        1.0,
        "width of the first projection over dim",
        above=0,
        size=True,
        needs={"conv_mode": "pre"},
    ),
    "use_conv": Option(False, "causal convolution", size=True),
    "d_conv": D_CONV,
    "conv_mode": Option(
        "pre",
        "place of the convolution: pre before the first silu; post on k, v and q, projected "
        "from the layer's input without a first projection",
        choices=("pre", "post"),
        size=True,
        needs={"use_conv": True},
    ),
    "linear_state": Option(False, "leave out the tanh around the new state (the vector gate)"),
    "dropout": Option(
        0.0,
        "dropout of the layer's output (n_heads=1 and conv_mode=pre: of the cell's output)",
        minimum=0,
        maximum=1,
        in_kernel=False,
    ),
}


CELL = Cell(
    name="e75",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e75_layer:E75",
    equation="S' = tanh(beta > S + (v - S k) k^T), y = S' q, out = y silu(y)",
    source="seed 004; matrix-state specification 10 and 11",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
