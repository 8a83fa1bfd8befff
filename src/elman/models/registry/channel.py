"""Options that the cells without a matrix in their recurrence share."""

from __future__ import annotations

from elman.models.registry.spec import Option


def channel_options(normal_init: str = "") -> dict[str, Option]:
    """Return the options of a cell between one projection in and one out.

    Args:
        normal_init: What ``mamba2_init=normal`` changes beside those two, in words, with its comma.
    """
    return {
        "expansion": Option(1.0, "width of the first projection over dim", above=0, size=True),
        "use_conv": Option(False, "causal convolution before the first silu", size=True),
        "d_conv": Option(
            4, "taps of the convolution", minimum=2, size=True, needs={"use_conv": True}
        ),
        "mamba2_init": Option(
            "none",
            "initial weights of the first and last projection: none Xavier; normal N(0, 0.02^2)"
            + normal_init,
            choices=("none", "normal"),
        ),
        "dropout": Option(0.0, "dropout of the cell's output", minimum=0, maximum=1),
    }


def minimal_options() -> dict[str, Option]:
    """Return the options of minGRU and minLSTM."""
    return {
        "expansion": Option(
            1.0,
            "width of the state over dim; anything but 1 adds an output projection",
            above=0,
            size=True,
        ),
        "form": Option(
            "parallel",
            "how the same recurrence is computed: parallel, cumulative sums of logarithms; "
            "sequential, a loop over time, more exact and on a CPU faster",
            choices=("parallel", "sequential"),
        ),
    }
