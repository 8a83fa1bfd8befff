"""Layer E62: each channel is overwritten where a gate of the input says so."""

from __future__ import annotations

from elman.models.cells.channel.base_layer import RETAIN_BIAS, ChannelMixer, Recurrence
from elman.models.cells.channel.e62 import CELL

WRITE_BIAS = -2.0
"""Initial bias of the write gate: 0.12 of each channel is overwritten."""

_BIASES = {"write_bias": WRITE_BIAS, "candidate_bias": 0.0}
RECURRENCES = {
    "plain": Recurrence("e62", ("write", "candidate"), _BIASES),
    "decay": Recurrence(
        "e62_decay", ("write", "candidate", "retain"), {**_BIASES, "retain_bias": RETAIN_BIAS}
    ),
    "tied": Recurrence("tied", ("candidate",), {"candidate_bias": 0.0}),
}


class E62(ChannelMixer):
    """h' = (1 - k) h + k tanh(W_v u + b_v), k = sigmoid(W_k u + b_k).

    Vector-state specification 4.2. variant=decay: a (1 - k) h with a = sigmoid(W_a u + b_a)
    in place of (1 - k) h. variant=tied: as E61's.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return RECURRENCES[self.settings.word("variant")]
