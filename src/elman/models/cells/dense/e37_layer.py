"""Layer E37: one matrix for input and state, then a self gate."""

from __future__ import annotations

from elman.models.cells.dense.base_layer import DenseMixer
from elman.models.cells.dense.e37 import CELL


class E37(DenseMixer):
    """u = silu(W_in x), h' = tanh(W (u + h) + b), y = W_out (h' silu(h')).

    Vector-state specification 3.8; computed as W u for all steps at once, then W h step by step,
    which is E37v2. The spectral norm holds for both uses of W.
    """

    cell = CELL
    drive = "tied"
