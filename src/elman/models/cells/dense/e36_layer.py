"""Layer E36: linear recurrence, then a self gate."""

from __future__ import annotations

from elman.models.blocks import init
from elman.models.cells.dense.base_layer import DenseMixer
from elman.models.cells.dense.e36 import CELL

SLOW_EIGENVALUES = (0.95, 0.99)


class E36(DenseMixer):
    """u = silu(W_in x), h' = W_x u + W_h h + b, y = W_out (h' silu(h')).

    Vector-state specification 3.7. Only the spectral norm bounds the state.
    """

    cell = CELL
    linear = True

    def orthogonal_start(self) -> float:
        """Return the singular values of the recurrent matrix under mamba2_init=normal."""
        return SLOW_EIGENVALUES[0]

    def reset_slow(self) -> None:
        """Draw the recurrent matrix of mamba2_init=s4d; it decays faster than the tanh cells'."""
        init.s4d_(self.recurrent, *SLOW_EIGENVALUES)
