"""Layer E61: input-dependent decay of each channel, linear in the state."""

from __future__ import annotations

from elman.models.blocks import init
from elman.models.cells.channel.base_layer import RETAIN_BIAS, ChannelMixer, Recurrence
from elman.models.cells.channel.e61 import CELL

WRITE_GAIN = 0.1
"""Gain of the additive variant's value matrix at the start."""

_BIASES = {"retain_bias": RETAIN_BIAS, "candidate_bias": 0.0}
RECURRENCES = {
    "plain": Recurrence("e61", ("retain", "candidate"), _BIASES),
    "tanh": Recurrence("e61_tanh", ("retain", "candidate"), _BIASES),
    "additive": Recurrence("e61_additive", ("retain", "candidate"), _BIASES),
    "tied": Recurrence("tied", ("candidate",), {"candidate_bias": 0.0}),
}


class E61(ChannelMixer):
    """h' = a h + (1 - a) v, v = W_v u + b_v, a = sigmoid(W_a u + b_a).

    Vector-state specification 4.1. use_tanh: v is a tanh. variant=additive: h' = a h + v, with W_v
    initially a tenth as large. variant=tied: q = W u + b, a = sigmoid(q), v = tanh(q).

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        use_tanh = self.settings.flag("use_tanh")
        return RECURRENCES["tanh" if use_tanh else self.settings.word("variant")]

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        super().reset_parameters()
        if self.settings.word("variant") == "additive":
            init.xavier_(self.cell_proj.chunk(2)[1], WRITE_GAIN)
