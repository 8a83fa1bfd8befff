"""Options of the E74 cells with a reduced state, which have only the delta rule and a self gate."""

from __future__ import annotations

from elman.models.cells.declaration import Option
from elman.models.cells.matrix_state.options import matrix_options


def reduced_options() -> dict[str, Option]:
    """Return the options of E74 with a low-rank or block-diagonal state."""
    return matrix_options(mamba2_init=False) | {
        "projection": Option(
            "no_z",
            "projections: no_z k, v, q; tied_kq q = k; tied_kvq q = k = v",
            choices=("no_z", "tied_kq", "tied_kvq"),
            size=True,
        ),
        "nonlinearity": Option("tanh", "applied to the new state", choices=("tanh", "linear")),
    }
