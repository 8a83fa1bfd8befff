"""Layer E42: linear recurrence through one matrix for input and state, then a self gate."""

from __future__ import annotations

from elman.models.cells.dense.base_layer import DenseMixer
from elman.models.cells.dense.e42 import CELL


class E42(DenseMixer):
    """u = silu(W_in x), h' = W u + W h + b, y = W_out (h' silu(h')).

    Vector-state specification 3.10; the spectral norm holds for both uses of W.
    """

    cell = CELL
    linear = True
    drive = "tied"

    def orthogonal_start(self) -> float:
        """Return the singular values of the recurrent matrix under mamba2_init=normal."""
        return self.settings.number("spectral_radius")
