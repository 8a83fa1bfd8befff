"""Layer E64: gated update whose candidate adds the state as it is."""

from __future__ import annotations

from elman.models.cells.channel.base_layer import RETAIN_BIAS, ChannelMixer, Recurrence
from elman.models.cells.channel.e64 import CELL


class E64(ChannelMixer):
    """h' = a h + (1 - a) tanh(h + W_x u + b), a = sigmoid(W_a u + b_a).

    Vector-state specification 4.4.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return Recurrence(
            step="e64",
            projections=("retain", "candidate"),
            vectors={
                "retain_bias": RETAIN_BIAS,
                "candidate_bias": 0.0,
            },
        )
