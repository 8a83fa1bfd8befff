"""Layer E74 with a fixed decay: a linear delta rule that forgets at one rate.

Shape legend: b batch, t time, h = 1 head, n rows and columns of the state, v its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elman.models.layers.gates import unit
from elman.models.layers.matrix import MatrixMixer, Parts
from elman.models.registry.e74_fixed_decay import CELL
from elman.ops.matrix_state.op import delta_rule


class E74FixedDecay(MatrixMixer):
    """S' = decay S + (v - S k) k^T, y = S' q, out = y silu(y).

    k is normalised, v and q are raw; the decay is a constant or sigmoid(l), which then receives its
    gradient (matrix-state specification 9, fixed decay). Dropout stands after the output
    projection.
    """

    cell = CELL
    decay_logit: nn.Parameter

    def dropout_after(self) -> bool:
        """Return that dropout stands after the output projection."""
        return True

    def row_blocks(self) -> dict[str, int]:
        """Return k, v and q."""
        return dict.fromkeys(("k", "v", "q"), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the decay's logit, if it is learned; 2.2 is a decay of 0.900."""
        return {"decay_logit": (1, 2.2)} if self.settings.flag("learned_decay") else {}

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence."""
        k_bthn = parts["k"]
        if self.settings.flag("learned_decay"):
            decay = torch.sigmoid(self.decay_logit.to(k_bthn.dtype))
        else:
            decay = k_bthn.new_tensor([self.settings.number("decay")])
        return delta_rule(
            parts["q"],
            unit(k_bthn),
            parts["v"],
            decay_bthr=decay.expand(*k_bthn.shape[:-1], 1),
            write_bth=None,
            state_bhvn=s_bhvn,
            linear_state=True,
            backend=backend,
        )
