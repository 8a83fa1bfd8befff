"""Layer E74 with a fixed decay: a linear delta rule that forgets at one rate."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e74_fixed_decay import CELL
from elman.ops.common.precision import wide_dtype
from elman.ops.matrix_state.plan import Plan


class E74FixedDecay(MatrixMixer):
    """S' = decay S + (v - S k) k^T, y = S' q, out = y silu(y).

    k is normalized, v and q are raw; the decay is a constant or sigmoid(l), which then receives its
    gradient (matrix-state specification 9, fixed decay). Dropout stands after the output
    projection.
    """

    cell = CELL
    decay_logit: nn.Parameter

    def dropout_after(self) -> bool:
        """Return that dropout comes after the output projection."""
        return True

    def row_blocks(self) -> dict[str, int]:
        """Return k, v and q."""
        return dict.fromkeys(("k", "v", "q"), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the decay's logit, if it is learned; 2.2 is a decay of 0.900."""
        return {"decay_logit": (1, 2.2)} if self.settings.flag("learned_decay") else {}

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence."""
        roles = {"k": "k", "v": "v", "q": "q"}
        return self.plan_of("delta", roles, k_unit=True, decay="parameter", nonlinearity="linear")

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the decay."""
        wide = wide_dtype(self.cell_proj.dtype)
        if self.settings.flag("learned_decay"):
            return {"decay": torch.sigmoid(self.decay_logit.to(wide))}
        value = self.settings.number("decay")
        return {"decay": self.cell_proj.new_full((1,), value, dtype=wide)}
