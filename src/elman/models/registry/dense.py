"""Options that the cells with a dense recurrent matrix share."""

from __future__ import annotations

from elman.models.registry.spec import Option

EXPANSION = Option(1.0, "width of the state over dim", above=0, size=True)
DROPOUT = Option(0.0, "dropout of the cell's output", minimum=0, maximum=1)
CONV = {
    "use_conv": Option(False, "causal convolution before the first silu", size=True),
    "d_conv": Option(4, "taps of the convolution", minimum=2, size=True, needs={"use_conv": True}),
}


def norm_options(radius: float, subject: str = "recurrent matrix") -> dict[str, Option]:
    """Return the options of a spectral normalisation.

    Args:
        radius: Default largest singular value.
        subject: What is normalised, in words.
    """
    return {
        "recurrent_norm": Option(
            "spectral",
            f"constraint of the {subject}: spectral rescales it to spectral_radius",
            choices=("spectral", "none"),
        ),
        "spectral_radius": Option(
            radius,
            f"largest singular value of the {subject}",
            above=0,
            needs={"recurrent_norm": "spectral"},
        ),
    }


def dense_options(
    radius: float, normal_init: str, slow_range: str = "0.99 to 0.9999"
) -> dict[str, Option]:
    """Return the options of a cell whose recurrent matrix may be spectrally normalised.

    Args:
        radius: Default largest singular value of the recurrent matrix.
        normal_init: How ``mamba2_init=normal`` draws the recurrent matrix, in words.
        slow_range: Range of the recurrent matrix's eigenvalues under ``mamba2_init=s4d``.
    """
    return {
        "expansion": EXPANSION,
        **norm_options(radius),
        "recurrent_gain": Option(
            0.1,
            "gain of the recurrent matrix's Xavier start",
            above=0,
            needs={"mamba2_init": "none"},
        ),
        **CONV,
        "mamba2_init": Option(
            "none",
            f"initial weights: none Xavier; normal N(0, 0.02^2), recurrent matrix {normal_init}; "
            f"s4d N(0, 0.02^2), recurrent matrix symmetric with eigenvalues {slow_range}",
            choices=("none", "normal", "s4d"),
        ),
        "dropout": DROPOUT,
    }
