"""Options that the cells with a dense recurrent matrix share."""

from __future__ import annotations

from elman.models.registry.spec import Option


def dense_options(radius: float, normal_init: str) -> dict[str, Option]:
    """Return the options of a cell whose recurrent matrix may be spectrally normalised.

    Args:
        radius: Default largest singular value of the recurrent matrix.
        normal_init: How ``mamba2_init=normal`` draws the recurrent matrix, in words.
    """
    return {
        "expansion": Option(1.0, "width of the state over dim", above=0, size=True),
        "recurrent_norm": Option(
            "spectral",
            "constraint of the recurrent matrix: spectral rescales it to spectral_radius",
            choices=("spectral", "none"),
        ),
        "spectral_radius": Option(
            radius,
            "largest singular value of the recurrent matrix",
            above=0,
            needs={"recurrent_norm": "spectral"},
        ),
        "recurrent_gain": Option(
            0.1,
            "gain of the recurrent matrix's Xavier start",
            above=0,
            needs={"mamba2_init": "none"},
        ),
        "use_conv": Option(False, "causal convolution before the first silu", size=True),
        "d_conv": Option(
            4, "taps of the convolution", minimum=2, size=True, needs={"use_conv": True}
        ),
        "mamba2_init": Option(
            "none",
            f"initial weights: none Xavier; normal N(0, 0.02^2), recurrent matrix {normal_init}; "
            "s4d N(0, 0.02^2), recurrent matrix symmetric with eigenvalues 0.99 to 0.9999",
            choices=("none", "normal", "s4d"),
        ),
        "dropout": Option(0.0, "dropout of the cell's output", minimum=0, maximum=1),
    }
