"""Layer E72: the state gates the value that it is about to store.

Shape legend: b batch, t time, h = 1 head, n rows and columns of the state, v its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elman.models.layers.matrix import MatrixMixer, Parts
from elman.models.registry.e72 import CELL
from elman.ops.matrix_state.op import recurrence

_STEPS = {"standard": "e72", "inverse": "e72_inverse"}


class E72(MatrixMixer):
    """r = S k, g = sigmoid(d o r + b), S' = a > S + (1 - a) > (v o g) k^T, y = S' q.

    a = sigmoid(W_a c + b_a) does not read the state; the inverse variant has g = sigmoid(-d o |r|
    + b); k is not normalised; out = y silu(y) (matrix-state specification 7).
    """

    cell = CELL
    gate_bias: nn.Parameter
    read_slope: nn.Parameter
    read_bias: nn.Parameter

    def row_blocks(self) -> dict[str, int]:
        """Return k, v, q and the row gate's logits."""
        return dict.fromkeys(("k", "v", "q", "logit"), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the row gate's bias (a = 0.88), and weight and bias of the value's gate."""
        return {
            "gate_bias": (self.size, 2.0),
            "read_slope": (self.size, 0.5),
            "read_bias": (self.size, 0.0),
        }

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence."""
        alpha_bthv = torch.sigmoid(parts["logit"] + self.gate_bias)
        value_bthv = (1 - alpha_bthv) * parts["v"]
        return recurrence(
            _STEPS[self.settings.word("variant")],
            {"k": parts["k"], "v": value_bthv, "q": parts["q"], "row": alpha_bthv},
            {"slope": self.read_slope, "bias": self.read_bias},
            s_bhvn,
            nonlinearity="linear",
            backend=backend,
        )
