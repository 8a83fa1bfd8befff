"""Layer E73: the state is modulated element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e73 import CELL
from elman.ops.matrix_state.plan import Plan

_BIAS = {"sigmoid": 2.0, "tanh": 1.0, "none": 1.0}


class E73(MatrixMixer):
    """S' = tanh(S o Z + v k^T), y = S' q, out = y silu(y) (matrix-state specification 8).

    Z_ij = z_j (column), z_i (row) or z_i z_j (full), z = sigmoid(W_z c + b). With rule=delta,
    S' = tanh(S + (v - (S o Z) k) k^T) and k is normalized: columns of Z scale the key of the read,
    rows scale the read.
    """

    cell = CELL
    z_bias: nn.Parameter

    def on_delta(self) -> bool:
        """Return whether the rule is the delta rule."""
        return self.settings.word("rule") == "delta"

    def z_activation(self) -> str:
        """Return the name of z's activation."""
        return self.settings.word("z_activation")

    def row_blocks(self) -> dict[str, int]:
        """Return k, v, q and z."""
        return dict.fromkeys(("k", "v", "q", "z"), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the bias of z."""
        return {"z_bias": (self.size, _BIAS[self.z_activation()])}

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence; z is the rows' gate, the columns', or both."""
        variant, act, delta = self.settings.word("variant"), self.z_activation(), self.on_delta()
        roles = {"k": "k", "v": "v", "q": "q"}
        choices: dict[str, Any] = {"k_unit": delta}
        if variant != "row":
            roles["z"] = "z"
            choices |= {"z_act": act, "z_bias": True, "key": "zk" if delta else "k"}
        if variant == "column":
            return self.plan_of("delta" if delta else "column_gated", roles, **choices)
        kind = "scaled_read_delta" if delta else f"{variant}_gated"
        return self.plan_of(f"{kind}_{act}", roles | {"g0": "z"}, **choices)

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the bias of z for each of its roles."""
        return dict.fromkeys(self.plan.parameter_names, self.z_bias)
