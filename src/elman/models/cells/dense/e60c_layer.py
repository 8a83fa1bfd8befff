"""Layer E60c: as a GRU without a reset gate, no norm."""

from __future__ import annotations

from elman.models.cells.dense.e60c import CELL
from elman.models.cells.dense.gated_layer import GatedDense, Recurrence


class E60c(GatedDense):
    """h' = f h + (1 - f) tanh(W_h h + W_x u + b), f = sigma(U_f h + W_f u + b_f), b_f = 2.

    Vector-state specification 3.12. Blocks: candidate, f; both read the state.
    State: as of :class:`~elman.models.cells.dense.gated_layer.GatedDense`.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence."""
        return Recurrence("mix_all", biases=(0.0, 2.0), products=(0.5, 0.1))
