"""Layer E33: Elman recurrence whose output gates itself."""

from __future__ import annotations

from elman.models.cells.dense.base_layer import DenseMixer
from elman.models.cells.dense.e33 import CELL


class E33(DenseMixer):
    """u = silu(W_in x), h' = tanh(W_x u + W_h h + b), y = W_out (h' silu(h')).

    Vector-state specification 3.5.
    """

    cell = CELL
