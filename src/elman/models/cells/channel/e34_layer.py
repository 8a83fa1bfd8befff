"""Layer E34: one recurrent coefficient for each channel, held within 0.99."""

from __future__ import annotations

from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.channel.base_layer import ChannelMixer, Recurrence
from elman.models.cells.channel.e34 import CELL

LIMIT = 0.99
"""Largest coefficient in use, and the largest at the start."""
LOWEST_START = 0.9
"""Smallest coefficient at the start."""


class E34(ChannelMixer):
    """h' = tanh(W_x u + c h + b), c within -0.99 and 0.99.

    Vector-state specification 3.6. A coefficient outside is used as the nearer bound and gets no
    gradient.

    State: ``h`` [B, i] in fp32 or wider, and with use_conv ``conv``, the last d_conv - 1 inputs
    of the convolution.
    """

    cell = CELL

    def choose_recurrence(self) -> Recurrence:
        """Return the recurrence that the options ask for."""
        return Recurrence("e34", ("candidate",), {"candidate_bias": 0.0, "coefficient": LIMIT})

    def reset_parameters(self) -> None:
        """Draw every weight anew."""
        super().reset_parameters()
        if self.settings.word("mamba2_init") == "normal":
            init.normal_(self.cell_proj)
        else:
            nn.init.uniform_(self.get_parameter("coefficient"), LOWEST_START, LIMIT)

    def step_parameters(self) -> dict[str, Tensor]:
        """Return the step's parameters by name, the coefficients within their bounds."""
        parameters = super().step_parameters()
        return parameters | {"coefficient": parameters["coefficient"].clamp(-LIMIT, LIMIT)}
