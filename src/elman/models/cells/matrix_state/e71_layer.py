"""Layer E71: a row gate that reads the state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e71 import CELL
from elman.ops.matrix_state.plan import Plan


class E71(MatrixMixer):
    """r = S k, a = sigmoid(W_a c + d o r + b), S' = a > S + (1 - a) > v k^T, y = S' q.

    a > S scales the value rows of S; k is not normalized; out = y silu(y) (matrix-state
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

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence."""
        roles = {"k": "k", "v": "v", "q": "q", "g0": "logit"}
        return self.plan_of("read_gated", roles, nonlinearity="linear")

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return bias and slope of the gate."""
        return {"p0": self.gate_bias, "p1": self.read_slope}
