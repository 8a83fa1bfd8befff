"""Options of a dense recurrent matrix: its constraint, its start, its rank."""

from __future__ import annotations

from elman.models.cells.common.options import CONVOLUTION, DROPOUT, expansion
from elman.models.cells.declaration import Option


def norm_options(radius: float, subject: str = "recurrent matrix") -> dict[str, Option]:
    """Return the options of a spectral normalization.

    Args:
        radius: Default largest singular value.
        subject: What is normalized, in words.
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
    """Return the options of a cell whose recurrent matrix may be spectrally normalized.

    Args:
        radius: Default largest singular value of the recurrent matrix.
        normal_init: How ``mamba2_init=normal`` draws the recurrent matrix, in words.
        slow_range: Range of the recurrent matrix's eigenvalues under ``mamba2_init=s4d``.
    """
    return {
        "expansion": expansion(),
        **norm_options(radius),
        "recurrent_gain": Option(
            0.1,
            "gain of the recurrent matrix's Xavier start",
            above=0,
            needs={"mamba2_init": "none"},
            in_kernel=False,
        ),
        **CONVOLUTION,
        "mamba2_init": Option(
            "none",
            f"initial weights: none Xavier; normal N(0, 0.02^2), recurrent matrix {normal_init}; "
            f"s4d N(0, 0.02^2), recurrent matrix symmetric with eigenvalues {slow_range}",
            choices=("none", "normal", "s4d"),
            in_kernel=False,
        ),
        "dropout": DROPOUT,
    }


def rank_option(rule: str) -> dict[str, Option]:
    """Return the rank of a low-rank recurrent product, with its rule for 0 in words."""
    return {
        "rank": Option(
            0, f"rank of the recurrent product; 0 is {rule} of D channels", minimum=0, size=True
        )
    }
