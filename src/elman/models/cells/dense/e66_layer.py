"""Layer E66: gated mix of the state and a candidate that reads it through a low-rank product."""

from __future__ import annotations

from elman.models.cells.dense.e66 import CELL
from elman.models.cells.dense.gated_layer import GatedDense, Recurrence


class E66(GatedDense):
    """h' = al h + (1 - al) tanh(U (V h) + W_x u + b), al = sigma(W_a u + b_a), b_a = 2.

    Vector-state specification 4.6; U is ``recurrent``, V ``recurrent_down``, of rank
    max(i // 4, 16) unless given. Blocks: candidate, al.
    State: as of :class:`~elman.models.cells.dense.gated_layer.GatedDense`.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence."""
        rank = self.settings.count("rank") or max(self.width // 4, 16)
        return Recurrence("mix", biases=(0.0, 2.0), products=(0.5,), rank=rank)
