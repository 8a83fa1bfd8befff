"""Options that the gated dense cells and the tape cell share."""

from __future__ import annotations

from elman.models.registry.spec import Option

EXPANSION = {"expansion": Option(1.0, "width of the state over dim", above=0, size=True)}

CONVOLUTION = {
    "use_conv": Option(False, "causal convolution before the first silu", size=True),
    "d_conv": Option(4, "taps of the convolution", minimum=2, size=True, needs={"use_conv": True}),
}

PROJECTIONS = {
    "mamba2_init": Option(
        "none",
        "initial projections into and out of the cell: none Xavier; normal N(0, 0.02^2)",
        choices=("none", "normal"),
    ),
    "dropout": Option(0.0, "dropout of the cell's output", minimum=0, maximum=1),
}

SKELETON = {**EXPANSION, **CONVOLUTION, **PROJECTIONS}
"""Options of a cell that has no others."""


def rank_option(rule: str) -> dict[str, Option]:
    """Return the rank of a low-rank recurrent product, with its rule for 0 in words."""
    return {
        "rank": Option(
            0, f"rank of the recurrent product; 0 is {rule} of D channels", minimum=0, size=True
        )
    }
