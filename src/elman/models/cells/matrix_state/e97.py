"""Cell E97: E88 whose write and whose erasure have gates of their own, channel by channel."""

from __future__ import annotations

from elman.models.cells.declaration import Cell, Option
from elman.models.cells.matrix_state.e88 import OPTIONS, heads_fit

EDIT = Option(
    "split",
    "split: write w o v and erase what e o k reads; raw: write w o v and erase nothing",
    choices=("split", "raw"),
    size=True,
)

CELL = Cell(
    name="e97",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e97_layer:E97",
    equation="S' = tanh(decay S + (w o v - S (e o k)) k^T), e and w = sigmoid(W x), y = S' q",
    source="no specification; the split edit of Gated DeltaNet 2 under E88's tanh",
    options={"edit": EDIT} | OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=heads_fit,
)
