"""Layer E59: a running sum of projected inputs, normalized after each step."""

from __future__ import annotations

import math

from torch import Tensor

from elman.models.cells.channel.base_layer import ChannelMixer, Recurrence
from elman.models.cells.channel.e59 import CELL
from elman.ops.common.precision import cast, wide_dtype

LOG_ALPHA = math.log(0.1)
"""Logarithm of the input's weight at the start."""


class E59(ChannelMixer):
    """h' = rn(h + alpha (W u + b)), alpha = exp(log_alpha), one learned scalar, initially 0.1.

    rn(v) = v / sqrt(mean(v^2) + 1e-6) without a gain (vector-state specification 3.12). In the
    first step from a zero state, rn removes the scale again, so alpha has an effect only from the
    second step on.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return Recurrence("e59", ("value",), {"value_bias": 0.0}, {"log_alpha": LOG_ALPHA})

    def step_parameters(self) -> dict[str, Tensor]:
        """Return the bias, and alpha instead of its logarithm."""
        given = super().step_parameters()
        log_alpha = given.pop("log_alpha")
        return given | {"alpha": cast(log_alpha, wide_dtype(log_alpha.dtype)).exp()}
