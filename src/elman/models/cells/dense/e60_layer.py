"""Layer E60: a residual step of learned size, normalized after each step."""

from __future__ import annotations

from elman.models.cells.dense.e60 import CELL
from elman.models.cells.dense.gated_layer import GatedDense, Recurrence


class E60(GatedDense):
    """h' = rn(h + alpha tanh(W_h h + W_x u + b)), alpha one learned scalar, initially 0.5.

    rn(v) = v / sqrt(mean(v^2) + 1e-6) without a gain (vector-state specification 3.12). In the
    first step from a zero state, rn removes the scale again, so alpha has an effect only from the
    second step on.
    State: as of :class:`~elman.models.cells.dense.gated_layer.GatedDense`.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence."""
        return Recurrence(
            "normalized_scalar",
            biases=(0.0,),
            products=(0.5,),
            tied=self.settings.flag("tied"),
            alpha=0.5,
        )
