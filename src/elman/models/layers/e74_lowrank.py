"""Layer E74 with a low-rank state S = U R^T whose right factor is fixed.

Shape legend: b batch, t time, h = 1 head, n rows of both factors, v rows of the state (n),
r columns of both factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models import init
from elman.models.layers.e74 import PROJECTIONS, tied
from elman.models.layers.gates import unit
from elman.models.layers.matrix import MatrixMixer, Parts
from elman.models.registry.e74_lowrank import CELL
from elman.ops.matrix_state.op import recurrence

BASIS_STD = 0.01


class E74LowRank(MatrixMixer):
    """U' = f(U + (v - U R^T k) (W_r k)^T), y = U' R^T q, out = y silu(y).

    k is normalised, v and q are raw (matrix-state specification 9, low-rank). R is drawn once from
    N(0, 0.01^2) and kept as a buffer, in checkpoints; the original drew it anew for every sequence
    that starts without a state. State: ``S`` [B, 1, n, r] is U.
    """

    cell = CELL
    basis: Tensor

    def state_shape(self) -> tuple[int, int]:
        """Return the shape of U."""
        return self.size, self.settings.count("rank")

    def row_blocks(self) -> dict[str, int]:
        """Return the projections that the options ask for."""
        return dict.fromkeys(PROJECTIONS[self.settings.word("projection")], self.size)

    def add_cell(self, to: Mapping[str, Any]) -> None:
        """Register the projection, W_r and R."""
        super().add_cell(to)
        rank = self.settings.count("rank")
        self.write_proj = nn.Parameter(torch.empty(rank, self.size, **to))
        self.register_buffer("basis", torch.empty(self.size, rank, **to))

    def reset_parameters(self) -> None:
        """Draw every weight and the fixed factor anew."""
        super().reset_parameters()
        init.xavier_(self.write_proj)
        init.normal_(self.basis, BASIS_STD)

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence on U with keys and queries of width r."""
        parts = tied(parts)
        k_bthn = unit(parts["k"])
        write_rn, basis_nr = (w.to(k_bthn.dtype) for w in (self.write_proj, self.basis))
        sequences = {
            "k": k_bthn @ write_rn.mT,
            "read": k_bthn @ basis_nr,
            "q": parts["q"] @ basis_nr,
            "v": parts["v"],
        }
        nonlinearity = self.settings.word("nonlinearity")
        return recurrence(
            "delta", sequences, {}, s_bhvn, nonlinearity=nonlinearity, backend=backend
        )
