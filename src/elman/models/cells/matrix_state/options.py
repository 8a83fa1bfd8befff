"""Options that the matrix-state cells with one shared scaffold have in common."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.declaration import Option


def matrix_options(
    expansion: float = 1.0, n_state: int = 64, *, mamba2_init: bool = True
) -> dict[str, Option]:
    """Return the options of a cell in scaffold A of matrix-state specification 2.

    Args:
        expansion: Default width of the first projection over dim.
        n_state: Default rows and columns of the state.
        mamba2_init: Whether the cell has the option of that name.
    """
    return {
        "n_state": Option(n_state, "rows and columns of the state", minimum=1, size=True),
        **skeleton_options(
            "width of the first projection",
            default=expansion,
            normal="" if mamba2_init else None,
        ),
    }
