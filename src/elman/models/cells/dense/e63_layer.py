"""Layer E63: gated mix of the state and a candidate that reads the state."""

from __future__ import annotations

from elman.models.cells.dense.e63 import CELL
from elman.models.cells.dense.gated_layer import GatedDense, Recurrence

_PLANS = {
    "complementary": Recurrence("mix", biases=(0.0, 2.0), products=(0.5,)),
    "independent": Recurrence("two_gates", biases=(0.0, 2.0, 0.0), products=(0.5,)),
    "h_dependent": Recurrence("two_gates_all", biases=(0.0, 2.0, 0.0), products=(0.5, 0.1, 0.1)),
    "residual": Recurrence("residual", biases=(0.0, 0.0), products=(0.3,)),
}


class E63(GatedDense):
    """h' = al h + (1 - al) v, v = tanh(W_h h + W_x u + b), al = sigma(W_a u + b_a), b_a = 2.

    Vector-state specification 4.3. Blocks: v, al, and the independent gate be if the variant has
    one. State: as of :class:`~elman.models.cells.dense.gated_layer.GatedDense`. From a zero start
    it stays within [-1, 1] only in the complementary variant.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence of the variant."""
        return _PLANS[self.settings.word("variant")]
