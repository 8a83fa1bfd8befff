"""Layer E59c: as E59, with a small dense term of the state.

Shape legend: i = int(d * expansion) channels of the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.channel.base_layer import ChannelMixer, Recurrence
from elman.models.cells.channel.e59_layer import LOG_ALPHA
from elman.models.cells.channel.e59c import CELL

BETA_LOGIT = math.log(0.01)
"""Initial logit of beta, which is 0.1 sigmoid of it: 0.00099."""
MIX_GAIN = 0.01
"""Singular values of W' at the start."""


class E59c(ChannelMixer):
    """h' = rn(h + alpha (W u + b) + beta (W' h)), beta = 0.1 sigmoid(beta_logit), else as E59.

    Vector-state specification 3.12. This is the engine's only cell with a matrix in its recurrence,
    so it runs only on the reference.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return Recurrence(
            "e59c",
            ("value",),
            {"value_bias": 0.0},
            {"log_alpha": LOG_ALPHA, "beta_logit": BETA_LOGIT},
        )

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the parameters of the recurrence, and the matrix W' [i, i]."""
        super().add_cell(to)
        self.mix = nn.Parameter(torch.empty(self.width, self.width, **to))

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        super().reset_parameters()
        init.orthogonal_(self.mix, MIX_GAIN)

    def step_parameters(self) -> dict[str, Tensor]:
        """Return the step's parameters by name."""
        return super().step_parameters() | {"mix": self.mix}
