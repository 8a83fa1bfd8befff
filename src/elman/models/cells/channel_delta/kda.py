"""Cell Kimi Delta Attention: a decay for each key channel; package flash-linear-attention."""

from __future__ import annotations

from dataclasses import replace

from elman.models.cells.declaration import Cell
from elman.models.cells.gated_delta.fla_gdn import (
    OPTIONS,
    delta_rule_flops,
    fits_heads,
    no_resets,
)

SHARED = {
    name: option for name, option in OPTIONS.items() if name not in ("use_gate", "gate_activation")
} | {"expansion": replace(OPTIONS["expansion"], default=1.0)}
"""Options of KDA and of Gated DeltaNet 2, with the package's defaults."""

CELL = Cell(
    name="kda",
    engine="channel_delta",
    layer="elman.models.cells.channel_delta.kda_layer:KimiDeltaAttention",
    equation="S' = S C + b (v - S C k) k^T, C = diag(c), y = S' q, out = norm(y) o sigmoid(W x)",
    source="Kimi team 2025, Kimi Linear (arXiv 2510.26692)",
    no_resets=no_resets,
    options=SHARED,
    backends=("reference", "triton"),
    rule=fits_heads,
    package="flash-linear-attention",
    scan_flops=delta_rule_flops,
)
