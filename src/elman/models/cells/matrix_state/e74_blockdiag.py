"""Cell E74 with a block-diagonal state: a delta rule in every block."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option, Value
from elman.models.cells.matrix_state.e74_reduced import reduced_options


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    wide_enough(dim, options)
    size, block = options["n_state"], options["block_size"]
    assert isinstance(size, int)
    assert isinstance(block, int)
    if size % block:
        above = (size // block + 1) * block
        near = f"{above - block} or {above}" if above > block else f"{above}"
        raise UserError(
            f"model.n_state={size}: does not divide into blocks of {block}; "
            f"use model.n_state={near}, or a model.block_size that divides {size}"
        )


CELL = Cell(
    name="e74_blockdiag",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e74_blockdiag_layer:E74BlockDiagonal",
    equation="S' = tanh(S + (v - S k) k^T) in every block, y = S' q, out = y silu(y)",
    source="matrix-state specification 9",
    options=reduced_options()
    | {
        "block_size": Option(
            8, "rows and columns of a block, as many blocks as n_state has", minimum=1
        )
    },
    backends=("reference", "cpu", "cuda"),
    rule=_rule,
)
