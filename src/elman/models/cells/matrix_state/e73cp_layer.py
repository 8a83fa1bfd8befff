"""Layer E73cp: E73's delta rule with z not squashed."""

from __future__ import annotations

from elman.models.cells.matrix_state.e73_layer import E73
from elman.models.cells.matrix_state.e73cp import CELL


class E73cp(E73):
    """S' = tanh(S + (v - (S o Z) k) k^T), Z from z = W_z c + b (matrix-state specification 8).

    The cell was named after its kernel, which stored a checkpoint every 32 steps and recomputed the
    other states. Here the kernels of every cell do so.
    """

    cell = CELL

    def on_delta(self) -> bool:
        """Return the one rule of this cell."""
        return True

    def z_activation(self) -> str:
        """Return that z has no activation."""
        return "none"
