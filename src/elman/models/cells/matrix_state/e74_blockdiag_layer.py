"""Layer E74 with a block-diagonal state: its blocks are heads."""

from __future__ import annotations

from elman.models.cells.matrix_state.base_layer import MatrixMixer
from elman.models.cells.matrix_state.e74_blockdiag import CELL
from elman.models.cells.matrix_state.e74_layer import PROJECTIONS, tied
from elman.ops.matrix_state.plan import Plan


class E74BlockDiagonal(MatrixMixer):
    """S' = f(S + (v - S k) k^T) in every block, y = S' q, out = y silu(y).

    k is normalized block by block, v and q are raw (matrix-state specification 9,
    block-diagonal). State: ``S`` [B, n_state / block_size, block_size, block_size].
    """

    cell = CELL

    @property
    def heads(self) -> int:
        """Number of blocks."""
        return self.size // self.settings.count("block_size")

    def state_shape(self) -> tuple[int, int]:
        """Return the shape of a block."""
        block = self.settings.count("block_size")
        return block, block

    def row_blocks(self) -> dict[str, int]:
        """Return the projections that the options ask for."""
        return dict.fromkeys(PROJECTIONS[self.settings.word("projection")], self.size)

    def choose_plan(self) -> Plan:
        """Return the plan of the recurrence of all blocks."""
        roles = tied(self.settings.word("projection"))
        nonlinearity = self.settings.word("nonlinearity")
        return self.plan_of("delta", roles, k_unit=True, nonlinearity=nonlinearity)
