"""Layer E71: a row gate that reads the state.

Shape legend: b batch, h = 1 head, n rows and columns of the state, v its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from elman.models.layers.matrix import MatrixMixer, Parts
from elman.models.registry.e71 import CELL
from elman.ops.matrix_state.op import recurrence


class E71(MatrixMixer):
    """r = S k, a = sigmoid(W_a c + d o r + b), S' = a > S + (1 - a) > v k^T, y = S' q.

    a > S scales the value rows of S; k is not normalised; out = y silu(y) (matrix-state
    specification 6).
    """

    cell = CELL
    gate_bias: nn.Parameter
    read_slope: nn.Parameter

    def row_blocks(self) -> dict[str, int]:
        """Return k, v, q and the gate's logits."""
        return dict.fromkeys(("k", "v", "q", "logit"), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the gate's bias (a = 0.88) and its weight on the read."""
        return {"gate_bias": (self.size, 2.0), "read_slope": (self.size, 0.1)}

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence."""
        sequences = parts | {"logit": parts["logit"] + self.gate_bias}
        slope = {"slope": self.read_slope}
        return recurrence("e71", sequences, slope, s_bhvn, nonlinearity="linear", backend=backend)
