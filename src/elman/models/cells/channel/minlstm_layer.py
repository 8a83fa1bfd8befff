"""Layer minLSTM: an LSTM whose normalized gates and candidate do not see the state."""

from __future__ import annotations

from elman.models.cells.channel.base_layer import MinimalMixer
from elman.models.cells.channel.minlstm import CELL


class MinLSTM(MinimalMixer):
    """h' = (f h + i g(k)) / (f + i), [k; f's logit; i's logit] = W x, g as in minGRU.

    Vector-state specification 5.4. State: ``h`` [B, int(dim * expansion)] in fp32 or wider.
    """

    cell = CELL
    step = "minlstm"
    projections = ("candidate", "forget", "write")
