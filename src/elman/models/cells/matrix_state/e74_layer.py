"""Layer E74 with a full matrix state: the delta rule and its alternatives.

Shape legend: b batch, t time, i inner channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e74 import CELL, recurrence_of
from elman.ops.common.precision import wide_dtype
from elman.ops.matrix_state.plan import Plan

PROJECTIONS = {
    "full": ("k", "v", "q", "z"),
    "no_z": ("k", "v", "q"),
    "tied_kq": ("k", "v"),
    "tied_kvq": ("k",),
}
# Additional projections that an update needs, each with a bias.
_GATES: dict[str, dict[str, float]] = {
    "ntm": {"erase": 0.0, "write": 0.0},
    "retrieved_gate": {"write": 0.0},
    "ema": {"keep": 2.0},
}


def tied(projection: str) -> dict[str, str]:
    """Return the row blocks of k, v and q under an option of :data:`PROJECTIONS`.

    If q or v have no projection of their own, they are the raw k. The gradients of all roles add up
    in the shared projection (matrix-state specification 9).
    """
    blocks = PROJECTIONS[projection]
    return {role: role if role in blocks else "k" for role in ("k", "v", "q")}


class E74(MatrixMixer):
    """S' = f(S + (v - S k) k^T), y = S' q, out = y silu(y) (matrix-state specification 9).

    k is normalized, v and q are raw. The options replace the update, the projections, the
    nonlinearity f and the gate; with projection=full the read is (S o z_j) k.
    """

    cell = CELL
    z_bias: nn.Parameter
    out_bias: nn.Parameter
    scale: nn.Parameter
    decay_logit: nn.Parameter
    energy_slope: nn.Parameter
    energy_bias: nn.Parameter

    @property
    def update(self) -> str:
        """Name of the update rule."""
        return self.settings.word("update")

    @property
    def gates(self) -> dict[str, float]:
        """Gates that have a projection, with the initial value of their bias."""
        gates = dict(_GATES.get(self.update, {}))
        return gates | ({"out": 0.0} if self.settings.word("gate") == "input" else {})

    def row_blocks(self) -> dict[str, int]:
        """Return the projections that the options ask for."""
        names = PROJECTIONS[self.settings.word("projection")]
        return dict.fromkeys((*names, *self.gates), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return biases, gate weights, write scales and the decay's logit."""
        values = {f"{name}_bias": value for name, value in self.gates.items()}
        if self.settings.word("projection") == "full":
            values["z_bias"] = 1.0
        if self.settings.word("gate") in ("retain", "state"):
            values |= {"energy_slope": 0.5, "energy_bias": 0.0}
        if self.update == "residual":
            values["scale"] = 0.1
        found = {name: (self.size, value) for name, value in values.items()}
        return found | ({"decay_logit": (1, 0.0)} if self.update == "simple" else {})

    def activated(self) -> bool:
        """Return whether silu is applied before the cell's projection."""
        return self.settings.flag("use_silu")

    def choose_plan(self) -> Plan:
        """Return the plan of the chosen update and gate."""
        roles = tied(self.settings.word("projection"))
        # In the order of the cell's gates.
        inner = [name for name in self.gates if name != "out"]
        roles |= {f"g{number}": name for number, name in enumerate(inner)}
        choices: dict[str, Any] = {"nonlinearity": self.settings.word("nonlinearity")}
        if "z" in self.blocks:
            roles["z"] = "z"
            choices |= {"key": "zk", "z_bias": True}
        if "out" in self.gates:
            roles["gate"] = "out"
            choices |= {"self_gate": False, "gate_act": "silu", "gate_bias": True}
        if self.update == "simple":
            choices["decay"] = "parameter"
        return self.plan_of(self._recurrence(), roles, k_unit=True, **choices)

    def _recurrence(self) -> str:
        gate, error_gate = self.settings.word("gate"), self.settings.flag("error_gate")
        return recurrence_of(self.update, gate, error_gate=error_gate)

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return biases, gate weights, write scales and the decay."""
        inner = [f"{name}_bias" for name in self.gates if name != "out"]
        names = {f"p{number}": name for number, name in enumerate(inner)}
        names |= {"z_bias": "z_bias", "gate_bias": "out_bias"}
        if self.update == "residual":
            names["p0"] = "scale"
        if self.settings.word("gate") in ("retain", "state"):
            names |= {"p0": "energy_slope", "p1": "energy_bias"}
        found: dict[str, Tensor] = {
            name: getattr(self, names[name])
            for name in self.plan.parameter_names
            if name != "decay"
        }
        if self.update == "simple":
            logit = self.decay_logit
            found["decay"] = torch.sigmoid(logit.to(wide_dtype(logit.dtype)))
        return found
