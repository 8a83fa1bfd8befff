"""Cell E0: the stock Elman recurrence with a learned gate."""

from __future__ import annotations

from elman.models.cells.common.options import CONVOLUTION, DROPOUT, expansion
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.dense.options import norm_options

_OPTIONS = {
    "expansion": expansion(),
    **norm_options(0.99),
    "recurrent_norm": Option(
        "spectral",
        "constraint of the recurrent matrix: spectral rescales it to spectral_radius; "
        "scaled_orthogonal is a fixed orthogonal matrix times one learned factor",
        choices=("spectral", "none", "scaled_orthogonal"),
        size=True,
    ),
    "recurrent_gain": Option(
        0.1,
        "gain of the recurrent matrix's Xavier start",
        above=0,
        needs={"recurrent_norm": ("spectral", "none")},
        in_kernel=False,
    ),
    **CONVOLUTION,
    "use_conv": Option(
        False, "causal convolution and silu after the first projection; else neither", size=True
    ),
    "dropout": DROPOUT,
}


CELL = Cell(
    name="e0",
    engine="dense",
    layer="elman.models.cells.dense.e0_layer:E0",
    equation="h' = tanh(W_x u + W_h h + b), out = h' silu(W_g u + b_g)",
    source="seed 004; vector-state specification 3.1",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
