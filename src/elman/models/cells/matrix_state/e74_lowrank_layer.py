"""Layer E74 with a low-rank state S = U R^T whose right factor is fixed.

Shape legend: b batch, t time, d model width, n rows of both factors and of the state, r columns of
both factors, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.models.cells.common.gates import unit
from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e74_layer import PROJECTIONS, tied
from elman.models.cells.matrix_state.e74_lowrank import CELL
from elman.models.state import State
from elman.ops.common.precision import wide_dtype
from elman.ops.common.slices import Slice
from elman.ops.matrix_state.plan import Plan

BASIS_STD = 0.01


class E74LowRank(MatrixMixer):
    """U' = f(U + (v - U R^T k) (W_r k)^T), y = U' R^T q, out = y silu(y).

    k is normalized, v and q are raw (matrix-state specification 9, low-rank). R is drawn once from
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

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence on U with keys and queries of width r."""
        roles = ("k", "read", "q", "v")
        places = tuple((role, Slice(source, 0)) for source, role in enumerate(roles))
        nonlinearity = self.settings.word("nonlinearity")
        return Plan(
            "delta", 1, *self.state_shape(), places, nonlinearity, key="read", self_gate=True
        )

    def project(
        self, x_btd: Tensor, state: State, carried: State, resets_bt: Tensor | None
    ) -> list[Tensor]:
        """Return W_r k, R^T k, R^T q and v."""
        cell_btc = self.project_cell(x_btd, state, carried, resets_bt)
        cell_btc = cell_btc.to(wide_dtype(cell_btc.dtype))
        parts = torch.split(cell_btc, list(self.blocks.values()), dim=-1)
        blocks = dict(zip(self.blocks, parts, strict=True))
        k, v, q = (blocks[name] for name in tied(self.settings.word("projection")).values())
        k_btn = unit(k)
        write_rn, basis_nr = (w.to(k_btn.dtype) for w in (self.write_proj, self.basis))
        return [k_btn @ write_rn.mT, k_btn @ basis_nr, q @ basis_nr, v]
