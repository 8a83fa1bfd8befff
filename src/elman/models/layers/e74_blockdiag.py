"""Layer E74 with a block-diagonal state: its blocks are heads of 8 by 8.

Shape legend: b batch, t time, h = n_state / 8 blocks, n rows and columns of a block, v its rows.
"""

from __future__ import annotations

from torch import Tensor

from elman.models.layers.e74 import PROJECTIONS, tied
from elman.models.layers.gates import unit
from elman.models.layers.matrix import MatrixMixer, Parts
from elman.models.registry.e74_blockdiag import BLOCK, CELL
from elman.ops.matrix_state.op import delta_rule


class E74BlockDiagonal(MatrixMixer):
    """S' = f(S + (v - S k) k^T) in every block, y = S' q, out = y silu(y).

    k is normalised block by block, v and q are raw (matrix-state specification 9,
    block-diagonal). State: ``S`` [B, n_state / 8, 8, 8].
    """

    cell = CELL

    @property
    def heads(self) -> int:
        """Number of blocks."""
        return self.size // BLOCK

    def state_shape(self) -> tuple[int, int]:
        """Return the shape of a block."""
        return BLOCK, BLOCK

    def row_blocks(self) -> dict[str, int]:
        """Return the projections that the options ask for."""
        return dict.fromkeys(PROJECTIONS[self.settings.word("projection")], self.size)

    def recur(self, parts: Parts, s_bhvn: Tensor, backend: str) -> tuple[Tensor, Tensor]:
        """Run the recurrence of all blocks."""
        parts = tied(parts)
        return delta_rule(
            parts["q"],
            unit(parts["k"]),
            parts["v"],
            decay_bthr=None,
            write_bth=None,
            state_bhvn=s_bhvn,
            linear_state=self.settings.word("nonlinearity") == "linear",
            backend=backend,
        )
