"""Layer E70: a matrix of decaying outer products.

Shape legend: n rows and columns of the state, i inner channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks.spectral_norm import SpectralNorm
from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e70 import CELL
from elman.ops.common.precision import wide_dtype
from elman.ops.matrix_state.plan import Plan

MAX_DECAY = 0.999


class E70(MatrixMixer):
    """S' = tanh(decay S + v k^T), y = S' q, out = y silu(y) (matrix-state specification 5).

    The decay is one number, held in [0, 0.999], learned or frozen at 0.9; k is not normalized.
    linear_state and projection_norm=spectral together are the form of 2026-01-15.
    """

    cell = CELL
    decay: nn.Parameter

    def row_blocks(self) -> dict[str, int]:
        """Return k, v and q."""
        return dict.fromkeys(("k", "v", "q"), self.size)

    def constants(self) -> Mapping[str, tuple[int, float]]:
        """Return the decay."""
        return {"decay": (1, 0.9)}

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the projection, freeze the decay if it is not learned, and norm W_k and W_v."""
        super().add_cell(to)
        self.decay.requires_grad_(self.settings.flag("learned_decay"))
        self.norms = nn.ModuleList()
        if self.settings.word("projection_norm") == "spectral":
            radius = self.settings.number("spectral_radius")
            self.norms.extend(
                SpectralNorm(self.size, radius, columns=self.width, **to) for _ in range(2)
            )

    def reset_parameters(self) -> None:
        """Draw every weight and every norm's direction anew."""
        super().reset_parameters()
        for norm, weight_ni in self._normed():
            norm.reset(weight_ni)

    def begin_step(self) -> None:
        """Advance the power iterations with the weights of this optimizer step."""
        for norm, weight_ni in self._normed():
            norm.advance(weight_ni)

    def _normed(self) -> list[tuple[SpectralNorm, Tensor]]:
        """Return each norm with its matrix: W_k and W_v, or none at all."""
        pairs = zip(self.norms, torch.split(self.cell_proj, self.size), strict=False)
        return [(norm, weight) for norm, weight in pairs if isinstance(norm, SpectralNorm)]

    def cell_matrix(self) -> Tensor:
        """Return W_k, W_v and W_q, the first two normalized if they are to be."""
        if not self.norms:
            return self.cell_proj
        w_k_ni, w_v_ni = (norm(weight_ni) for norm, weight_ni in self._normed())
        w_q_ni = self.cell_proj[2 * self.size :].to(w_k_ni.dtype)
        return torch.cat([w_k_ni, w_v_ni, w_q_ni])

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence."""
        linear = self.settings.flag("linear_state")
        return self.plan_of(
            "decayed",
            {"k": "k", "v": "v", "q": "q"},
            decay="parameter",
            nonlinearity="linear" if linear else "tanh",
        )

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the decay; it receives its gradient through the clamp."""
        return {"decay": self.decay.to(wide_dtype(self.decay.dtype)).clamp(0, MAX_DECAY)}
