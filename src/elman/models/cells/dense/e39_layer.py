"""Layer E39: Elman recurrence without an input matrix and without a bias."""

from __future__ import annotations

from elman.models.cells.dense.base_layer import DenseMixer
from elman.models.cells.dense.e39 import CELL


class E39(DenseMixer):
    """u = silu(W_in x), h' = tanh(u + W_h h), y = W_out (h' silu(h')).

    Vector-state specification 3.9.
    """

    cell = CELL
    drive = "input"
