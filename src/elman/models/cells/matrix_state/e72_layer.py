"""Layer E72: the state gates the value that it is about to store."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e72 import CELL, RECURRENCES
from elman.ops.matrix_state.plan import Plan


class E72(MatrixMixer):
    """r = S k, g = sigmoid(d o r + b), S' = a > S + (1 - a) > (v o g) k^T, y = S' q.

    a = sigmoid(W_a c + b_a) does not read the state; the inverse variant has g = sigmoid(-d o |r|
    + b); k is not normalized; out = y silu(y) (matrix-state specification 7).
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

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence."""
        roles = {"k": "k", "v": "v", "q": "q", "g0": "logit"}
        recurrence = RECURRENCES[self.settings.word("variant")]
        return self.plan_of(recurrence, roles, nonlinearity="linear")

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the row gate's bias, and slope and bias of the value's gate."""
        return {"p0": self.gate_bias, "p1": self.read_slope, "p2": self.read_bias}
