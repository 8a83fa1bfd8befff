"""Layer E74 with a diagonal state: the delta rule of every channel by itself.

Shape legend: b batch, t time, i = int(d * expansion) inner channels of a model of width d.
"""

from __future__ import annotations

from torch import Tensor

from elman.models.cells.channel.base_layer import RETAIN_BIAS, ChannelMixer, Recurrence
from elman.models.cells.channel.e74_diagonal import CELL
from elman.ops.channel.plan import Plan
from elman.ops.common.slices import row_blocks

RETAIN_LOGIT = -0.1
"""Initial logit of the simple update's decay, 0.475."""
GATE_VECTORS = {"gate_scale": 0.5, "gate_bias": 0.0}
"""Initial values of the retain and state gates."""

_PROJECTIONS = {
    "no_z": ("key", "value", "query"),
    "tied_kq": ("key", "value"),
    "tied_kvq": ("key",),
}


class E74Diagonal(ChannelMixer):
    """s' = tanh(s (1 - k^2) + v k), y = s' q, out = W_out (y silu(y)), c = silu(conv(W_in x)).

    k is W_k c divided by its norm over the n channels, v and q are raw (matrix-state
    specification 9). Other updates, gates and nonlinearities: the options, and the steps ``e74_*``
    of :mod:`elman.ops.channel.steps`.

    State: ``h`` [B, n], the s above, in fp32 or wider, and with use_conv ``conv``, the last
    d_conv - 1 inputs of the convolution.
    """

    cell = CELL

    def state_channels(self) -> int:
        """Return the width of the state."""
        return self.settings.count("n_state")

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        word = self.settings.word
        projections = _PROJECTIONS[word("projection")]
        update, vectors = word("update"), {}
        if word("gate") != "output":
            update, vectors = word("gate"), GATE_VECTORS
        elif update == "simple":
            vectors = {"retain_logit": RETAIN_LOGIT}
        elif update == "ema":
            projections, vectors = (*projections, "retain"), {"retain_bias": RETAIN_BIAS}
        return Recurrence(f"e74_{update}_{word('nonlinearity')}", projections, vectors)

    def activate(self, p_bti: Tensor) -> Tensor:
        """Apply the first activation, if the layer has one."""
        return super().activate(p_bti) if self.settings.flag("use_silu") else p_bti

    def choose_plan(self) -> Plan:
        """Return what one call computes: key, value and query may be one block of the matrix."""
        places = row_blocks(dict.fromkeys(self.recurrence.projections, self.channels))
        inputs = {"key": places["key"], "value": places.get("value", places["key"])}
        if "retain" in places:
            inputs["retain"] = places["retain"]
        return Plan(
            self.recurrence.step,
            tuple(inputs.items()),
            unit="key",
            query=places.get("query", places["key"]),
            self_gate=True,
        )
