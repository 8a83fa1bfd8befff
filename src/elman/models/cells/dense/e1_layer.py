"""Layer E1: Elman recurrence, gated by the second half of the input projection."""

from __future__ import annotations

from elman.models.cells.dense.base_layer import DenseMixer
from elman.models.cells.dense.e1 import CELL


class E1(DenseMixer):
    """[p; z] = W_in x, u = silu(p), h' = tanh(W_x u + W_h h + b), y = W_out (h' silu(z)).

    Vector-state specification 3.2.
    """

    cell = CELL
    branches = 2
