"""Options of the cells without a matrix in their recurrence."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.declaration import Option


def channel_options(normal: str = "") -> dict[str, Option]:
    """Return the options of a cell after a first projection; ``normal`` as in the skeleton."""
    return skeleton_options("width of the first projection", normal=normal)


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
            "how plain PyTorch computes the recurrence: parallel, cumulative sums of logarithms; "
            "sequential, a loop over time, more exact; a kernel runs one loop for both",
            choices=("parallel", "sequential"),
        ),
    }
