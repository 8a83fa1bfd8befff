"""Options that the matrix-state cells with one shared scaffold have in common."""

from __future__ import annotations

from elman.models.registry.spec import Option


def matrix_options(
    expansion: float = 1.0, n_state: int = 64, *, mamba2_init: bool = True
) -> dict[str, Option]:
    """Return the options of a cell behind matrix-state specification 2, scaffold A.

    Args:
        expansion: Default width of the first projection over dim.
        n_state: Default rows and columns of the state.
        mamba2_init: Whether the cell has the option of that name.
    """
    options = {
        "n_state": Option(n_state, "rows and columns of the state", minimum=1, size=True),
        "expansion": Option(
            expansion, "width of the first projection over dim", above=0, size=True
        ),
        "use_conv": Option(False, "causal convolution before the first silu", size=True),
        "d_conv": Option(
            4, "taps of the convolution", minimum=2, size=True, needs={"use_conv": True}
        ),
    }
    if mamba2_init:
        options["mamba2_init"] = Option(
            "none",
            "initial weights of the first and last projection: none Xavier, normal N(0, 0.02^2)",
            choices=("none", "normal"),
        )
    options["dropout"] = Option(0.0, "dropout of the cell's output", minimum=0, maximum=1)
    return options
