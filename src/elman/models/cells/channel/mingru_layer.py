"""Layer minGRU: a GRU whose gate and candidate do not see the state."""

from __future__ import annotations

from elman.models.cells.channel.base_layer import MinimalMixer
from elman.models.cells.channel.mingru import CELL


class MinGRU(MinimalMixer):
    """h' = (1 - z) h + z g(k), [k; z's logit] = W x, g(k) = k + 1/2 or, below 0, sigmoid(k).

    Vector-state specification 5.3. State: ``h`` [B, int(dim * expansion)] in fp32 or wider.
    """

    cell = CELL
    step = "mingru"
    projections = ("candidate", "gate")
