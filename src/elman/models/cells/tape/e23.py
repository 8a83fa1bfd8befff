"""Cell E23: Elman recurrence with a tape of memory slots, read and written by attention."""

from __future__ import annotations

from collections.abc import Mapping

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option, Value


def _no_resets(options: Mapping[str, Value]) -> str:
    if options["initial_tape"] == "seeded":
        return (
            "a document would start from a tape of zeros, and not from the seeded one "
            "(model.initial_tape=zero starts from zeros)"
        )
    return ""


CELL = Cell(
    name="e23",
    engine="tape",
    layer="elman.models.cells.tape.e23_layer:E23",
    equation="h' = tanh(W_h h + W_x u + r M + b), M' = (1 - w) M + w (W_r h'), out = h' silu(z)",
    source="seed 003; vector-state specification 3.4",
    backends=("reference", "cpu", "cuda"),
    no_resets=_no_resets,
    options={
        "n_slots": Option(8, "memory slots of the tape", minimum=1, size=True),
        "initial_tape": Option(
            "seeded",
            "tape that a sequence starts from: seeded fixed N(0, 1) values, kept in checkpoints; "
            "zero the published one, whose slots stay identical for ever",
            choices=("seeded", "zero"),
            in_kernel=False,
        ),
        "tape_seed": Option(
            0,
            "seed of the initial tape",
            minimum=0,
            maximum=999_999,
            needs={"initial_tape": "seeded"},
            in_kernel=False,
        ),
        "write": Option(
            "full",
            "value that the tape is written with: full W_r h'; identity h'; shared W_h h'",
            choices=("full", "identity", "shared"),
            size=True,
        ),
        **skeleton_options(convolution=False),
    },
    rule=wide_enough,
)
