"""Layer E67: gated update whose gate sees the state, scaled for each channel."""

from __future__ import annotations

from elman.models.cells.channel.base_layer import RETAIN_BIAS, ChannelMixer, Recurrence
from elman.models.cells.channel.e67 import CELL


class E67(ChannelMixer):
    """h' = a h + (1 - a) tanh(W_x u + b), a = sigmoid(W_a u + c h + b_a), c unconstrained.

    Vector-state specification 4.7.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return Recurrence(
            step="e67",
            projections=("retain", "candidate"),
            vectors={
                "retain_bias": RETAIN_BIAS,
                "candidate_bias": 0.0,
                "coefficient": 0.1,
            },
        )
