"""Layer E67lr: a retain gate that reads the state through a low-rank product."""

from __future__ import annotations

from elman.models.cells.dense.e67lr import CELL
from elman.models.cells.dense.gated_layer import GatedDense, Recurrence


class E67lr(GatedDense):
    """h' = al h + (1 - al) tanh(W_x u + b), al = sigma(U (V h) + W_a u + b_a), b_a = 2.

    Vector-state specification 4.7, variant lowrank; U is ``recurrent``, V ``recurrent_down``, of
    rank max(i // 8, 8) unless given. Blocks: al, candidate.
    State: as of :class:`~elman.models.cells.dense.gated_layer.GatedDense`.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence."""
        rank = self.settings.count("rank") or max(self.width // 8, 8)
        return Recurrence("mix_gate", biases=(2.0, 0.0), products=(0.1,), rank=rank)
