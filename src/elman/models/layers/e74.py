"""Layer E74 with a full matrix state: the delta rule and what it can be exchanged for.

Shape legend: b batch, t time, i inner channels, h = 1 head, n rows and columns of the state,
v its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models.layers.gates import self_gate, unit
from elman.models.layers.matrix import MatrixMixer, Parts
from elman.models.registry.e74 import CELL
from elman.models.state import State
from elman.ops.matrix_state.op import recurrence

PROJECTIONS = {
    "full": ("k", "v", "q", "z"),
    "no_z": ("k", "v", "q"),
    "tied_kq": ("k", "v"),
    "tied_kvq": ("k",),
}
# Projections, each with a bias, that an update needs besides.
_GATES: dict[str, dict[str, float]] = {
    "ntm": {"erase": 0.0, "write": 0.0},
    "retrieved_gate": {"write": 0.0},
    "ema": {"keep": 2.0},
}


def tied(parts: Parts) -> Parts:
    """Return ``parts`` with q and v, where they have no projection, equal to the raw k.

    The gradients of all roles meet in the one projection (matrix-state specification 9).
    """
    return {"q": parts["k"], "v": parts["k"]} | parts


class E74(MatrixMixer):
    """S' = f(S + (v - S k) k^T), y = S' q, out = y silu(y) (matrix-state specification 9).

    k is normalised, v and q are raw. The options replace the update, the projections, the
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

    def activate(self, u_bti: Tensor) -> Tensor:
        """Apply the first activation, if there is one."""
        return functional.silu(u_bti) if self.settings.flag("use_silu") else u_bti

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence of the update that is asked for."""
        parts = tied(parts)
        sequences = {"k": unit(parts["k"]), "v": parts["v"], "q": parts["q"]}
        if self.update == "delta":
            step, more, parameters = self._delta(parts, sequences["k"])
        else:
            step, more, parameters = self._exchanged(parts)
        return recurrence(
            step,
            sequences | more,
            parameters,
            s_bhvn,
            nonlinearity=self.settings.word("nonlinearity"),
            backend=backend,
        )

    def _delta(self, parts: Parts, k_bthn: Tensor) -> tuple[str, Parts, Parts]:
        """Return step, further sequences and parameters of the delta rule under its gates."""
        more = {}
        if "z" in parts:
            more["read"] = (parts["z"] + self.z_bias) * k_bthn
        gate = self.settings.word("gate")
        if gate not in ("retain", "state"):
            return "delta", more, {}
        return f"e74_{gate}", more, {"slope": self.energy_slope, "bias": self.energy_bias}

    def _exchanged(self, parts: Parts) -> tuple[str, Parts, Parts]:
        """Return step, further sequences and parameters of the other updates."""
        if self.update == "residual":
            return "e74_residual", {}, {"scale": self.scale}
        if self.update == "simple":
            return "outer", {}, {"decay": self._decay(parts)}
        if self.update == "ema":
            keep_bthv = self._sigmoid(parts, "keep")
            return "outer", {"row": keep_bthv, "v": (1 - keep_bthv) * parts["v"]}, {}
        if self.update == "ntm":
            written_bthv = self._sigmoid(parts, "write") * parts["v"]
            return "e74_ntm", {"erase": self._sigmoid(parts, "erase"), "v": written_bthv}, {}
        assert self.update == "retrieved_gate"
        if self.settings.flag("error_gate"):
            return "e74_error_gate", {"logit": self._logit(parts, "write")}, {}
        return "e74_retrieved_gate", {"write": self._sigmoid(parts, "write")}, {}

    def _decay(self, parts: Parts) -> Tensor:
        return torch.sigmoid(self.decay_logit.to(parts["k"].dtype))

    def _logit(self, parts: Parts, gate: str) -> Tensor:
        return parts[gate] + self.get_parameter(f"{gate}_bias")

    def _sigmoid(self, parts: Parts, gate: str) -> Tensor:
        return torch.sigmoid(self._logit(parts, gate))

    def gate(self, y_bthv: Tensor, parts: Parts, state: State, carried: State) -> Tensor:
        """Gate the reads by a projection, or let each gate itself."""
        if "out" in parts:
            return y_bthv * functional.silu(self._logit(parts, "out"))
        return self_gate(y_bthv)
