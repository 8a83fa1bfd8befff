"""Cell E74 with a block-diagonal state: a delta rule in every block of 8 by 8."""

from __future__ import annotations

from collections.abc import Mapping

from elman.errors import UserError
from elman.models.registry.e74_reduced import reduced_options
from elman.models.registry.spec import Cell, Value
from elman.models.registry.width import wide_enough

BLOCK = 8
"""Rows and columns of a block."""


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    wide_enough(dim, options)
    size = options["n_state"]
    assert isinstance(size, int)
    if size % BLOCK:
        above = (size // BLOCK + 1) * BLOCK
        near = f"{above - BLOCK} or {above}" if above > BLOCK else f"{above}"
        raise UserError(
            f"model.n_state={size}: does not divide into blocks of {BLOCK}; "
            f"use model.n_state={near}"
        )


CELL = Cell(
    name="e74_blockdiag",
    engine="matrix_state",
    layer="elman.models.layers.e74_blockdiag:E74BlockDiagonal",
    equation="S' = tanh(S + (v - S k) k^T) in blocks of 8 x 8, y = S' q, out = y silu(y)",
    source="matrix-state specification 9",
    options=reduced_options(),
    backends=("reference", "cpu", "cuda"),
    rule=_rule,
)
