"""Cell E59c: as E59, with a small dense term of the state."""

from __future__ import annotations

from elman.models.cells.common.options import skeleton_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="e59c",
    engine="dense",
    layer="elman.models.cells.dense.e59c_layer:E59c",
    equation="h' = rmsnorm(h + alpha (W u + b) + beta W' h), out = h' silu(h')",
    source="vector-state specification 3.12",
    options=skeleton_options("width of the first projection"),
    backends=("reference", "cpu", "cuda"),
    rule=wide_enough,
)
