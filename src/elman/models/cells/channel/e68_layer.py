"""Layer E68: gated update whose candidate is gated by the state of its own channel."""

from __future__ import annotations

from elman.models.cells.channel.base_layer import RETAIN_BIAS, ChannelMixer, Recurrence
from elman.models.cells.channel.e68 import CELL

COEFFICIENT = 0.5
"""Initial weight of the state in its gate."""

_BIASES = {"retain_bias": RETAIN_BIAS, "candidate_bias": 0.0, "coefficient": COEFFICIENT}
RECURRENCES = {
    "plain": Recurrence("e68", ("retain", "candidate"), {**_BIASES, "self_bias": 0.0}),
    "inverse": Recurrence("e68_inverse", ("retain", "candidate"), {**_BIASES, "self_bias": 0.5}),
}


class E68(ChannelMixer):
    """h' = a h + (1 - a) tanh(W_x u + b) f, a = sigmoid(W_a u + b_a), f = sigmoid(c h + b_g).

    Vector-state specification 4.8. variant=inverse: f = sigmoid(-c |h| + b_g).

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return RECURRENCES[self.settings.word("variant")]
