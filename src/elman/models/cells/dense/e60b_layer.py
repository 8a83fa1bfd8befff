"""Layer E60b: as E60, its step sized by a gate of the input."""

from __future__ import annotations

from elman.models.cells.dense.e60b import CELL
from elman.models.cells.dense.gated_layer import GatedDense, Recurrence


class E60b(GatedDense):
    """h' = rn(h + g tanh(W_h h + W_x u + b)), g = sigma(W_g u + b_g), b_g = 0 at the start.

    rn(v) = v / sqrt(mean(v^2) + 1e-6) (vector-state specification 3.12). Blocks: candidate, g.
    State: as of :class:`~elman.models.cells.dense.gated_layer.GatedDense`.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence."""
        return Recurrence("normalized", biases=(0.0, 0.0), products=(0.5,))
