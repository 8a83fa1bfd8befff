"""Cell Gated DeltaNet 2: gates that erase and write by channel; package flash-linear-attention."""

from __future__ import annotations

from elman.models.cells.channel_delta.kda import SHARED
from elman.models.cells.declaration import Cell
from elman.models.cells.gated_delta.fla_gdn import delta_rule_flops, fits_heads, no_resets

CELL = Cell(
    name="gdn2",
    engine="channel_delta",
    layer="elman.models.cells.channel_delta.gdn2_layer:GatedDeltaNet2",
    equation="S' = S C - (S C (e o k)) k^T + (w o v) k^T, C = diag(c), y = S' q, "
    "out = norm(y) o sigmoid(W x)",
    source="flash-linear-attention 0.6.0, fla.layers.GatedDeltaNet2",
    no_resets=no_resets,
    options=SHARED,
    backends=("reference", "triton"),
    rule=fits_heads,
    package="flash-linear-attention",
    scan_flops=delta_rule_flops,
)
