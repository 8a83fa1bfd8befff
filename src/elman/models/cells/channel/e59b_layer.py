"""Layer E59b: like E59, but each input is weighted by its own gate."""

from __future__ import annotations

from elman.models.cells.channel.base_layer import ChannelMixer, Recurrence
from elman.models.cells.channel.e59b import CELL

GATE_BIAS = -2.0
"""Initial bias of the gate: 0.12 of each input is added."""


class E59b(ChannelMixer):
    """h' = rn(h + g (W u + b)), g = sigmoid(W_g u + b_g), rn as in E59.

    Vector-state specification 3.12.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return Recurrence("e59b", ("value", "gate"), {"value_bias": 0.0, "gate_bias": GATE_BIAS})
