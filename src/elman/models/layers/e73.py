"""Layer E73: the state is modulated element by element.

Shape legend: b batch, t time, h = 1 head, n rows and columns of the state, v its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elman.models.layers.gates import unit
from elman.models.layers.matrix import MatrixMixer, Parts
from elman.models.registry.e73 import CELL
from elman.ops.matrix_state.op import recurrence

_ACTIVATIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "none": lambda z: z}
_BIAS = {"sigmoid": 2.0, "tanh": 1.0, "none": 1.0}


class E73(MatrixMixer):
    """S' = tanh(S o Z + v k^T), y = S' q, out = y silu(y) (matrix-state specification 8).

    Z_ij = z_j (column), z_i (row) or z_i z_j (full), z = sigmoid(W_z c + b). With rule=delta,
    S' = tanh(S + (v - (S o Z) k) k^T) and k is normalised.
    """

    cell = CELL
    z_bias: nn.Parameter

    def rule(self) -> str:
        """Return ``modulated`` or ``delta``."""
        return self.settings.word("rule")

    def z_activation(self) -> str:
        """Return the name of z's activation."""
        return self.settings.word("z_activation")

    def row_blocks(self) -> dict[str, int]:
        """Return k, v, q and z."""
        return dict.fromkeys(("k", "v", "q", "z"), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the bias of z."""
        return {"z_bias": (self.size, _BIAS[self.z_activation()])}

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence."""
        z_bthn = _ACTIVATIONS[self.z_activation()](parts["z"] + self.z_bias)
        variant = self.settings.word("variant")
        sequences = {name: parts[name] for name in ("k", "v", "q")}
        if variant != "column":
            sequences["row"] = z_bthn
        if self.rule() == "delta":
            sequences["k"] = unit(parts["k"])
            # (S o Z) k = [z o] S (z o k): columns of Z scale the key, rows scale the read.
            if variant != "row":
                sequences["read"] = z_bthn * sequences["k"]
        elif variant != "row":
            sequences["column"] = z_bthn
        step = "delta" if self.rule() == "delta" else "outer"
        return recurrence(step, sequences, {}, s_bhvn, nonlinearity="tanh", backend=backend)
