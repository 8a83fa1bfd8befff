"""Cell E4: Elman recurrence through a low-rank matrix, with a silu gate."""

from __future__ import annotations

from elman.models.cells.common.options import DROPOUT, expansion
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option
from elman.models.cells.dense.options import norm_options

MINIMUM_RANK = 16


def rank_of(dim: int, expansion: float, rank: int) -> int:
    """Return the rank in force: the given one, or for 0 the rank rule.

    The rule gives the two factors the dim x dim weights of an E1 of expansion 1 (vector-state
    specification 3.3).
    """
    return rank or max(MINIMUM_RANK, int(dim / (2 * expansion)))


CELL = Cell(
    name="e4",
    engine="dense",
    layer="elman.models.cells.dense.e4_layer:E4",
    equation="h' = tanh(W_x u + U V h + b), out = h' silu(z)",
    source="seed 002; vector-state specification 3.3",
    options={
        "expansion": expansion(),
        "rank": Option(
            0,
            "columns of U and rows of V; 0 is max(16, int(dim / (2 expansion)))",
            minimum=0,
            size=True,
        ),
        **norm_options(0.95, "product U V"),
        "dropout": DROPOUT,
    },
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
