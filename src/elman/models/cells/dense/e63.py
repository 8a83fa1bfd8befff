"""Cell E63: gated mix of the state and a candidate that reads the state."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="e63",
    engine="dense",
    layer="elman.models.cells.dense.e63_layer:E63",
    equation="h' = al h + (1 - al) tanh(W_h h + W_x u + b), al = sigma(W_a u + b_a)",
    source="seed 004; vector-state specification 4.3",
    options={
        "variant": Option(
            "complementary",
            "how state and candidate v mix: complementary al h + (1 - al) v; independent "
            "al h + be v, be = sigma(W_b u + b_b); h_dependent the same with U_a h and U_b h in "
            "the two gates; residual h + al v",
            choices=("complementary", "independent", "h_dependent", "residual"),
            size=True,
        ),
        **skeleton_options(),
    },
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
