"""Cell RWKV-7: time mixing of "Goose"; package flash-linear-attention."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.declaration import Cell, Option, Value
from elman.models.cells.gated_delta.fla_gdn import no_resets

RANKS = {"decay_rank": 2.5, "gate_rank": 5.0, "a_rank": 2.5, "v_rank": 1.7}
"""Ranks of the small products, over the root of dim where the package chooses them."""
_OPTIONS = {
    "head_dim": Option(64, "width of a head, of keys and of values", minimum=2, size=True),
    "decay_rank": Option(
        0, "rank of the decay (decay_low_rank_dim); 0: see rank_of", minimum=0, size=True
    ),
    "gate_rank": Option(
        0, "rank of the output gate (gate_low_rank_dim); 0: see rank_of", minimum=0, size=True
    ),
    "a_rank": Option(
        0, "rank of the in-context rate (a_low_rank_dim); 0: see rank_of", minimum=0, size=True
    ),
    "v_rank": Option(
        0,
        "rank of the mix with the first layer's values (v_low_rank_dim); 0: see rank_of",
        minimum=0,
        size=True,
    ),
    "norm_eps": Option(1e-5, "added to a head's variance, times head_dim", above=0),
}


def rank_of(name: str, dim: int, options: Mapping[str, Value]) -> int:
    """Return a rank as given, or c sqrt(dim) to a multiple of 32, at least 32, as the package does.

    c is that of :data:`RANKS`, times head_dim / 64 but for the output gate.
    """
    given, width = options[name], options["head_dim"]
    assert isinstance(given, int)
    assert isinstance(width, int)
    factor = 1.0 if name == "gate_rank" else width / 64
    return given or max(32, round(RANKS[name] * dim**0.5 * factor / 32) * 32)


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    width = options["head_dim"]
    assert isinstance(width, int)
    if dim % width:
        near = max(w for w in range(1, min(width, dim) + 1) if dim % w == 0)
        raise UserError(
            f"model.head_dim={width}: does not divide model.dim={dim}; use model.head_dim={near}"
        )


def _scan_flops(dim: int, options: Mapping[str, Value], positions: range) -> float:
    """9 a number of the state and step: decay 1, two reads 4, two writes 4."""
    width = options["head_dim"]
    assert isinstance(width, int)
    return 9 * dim * width * len(positions)


CELL = Cell(
    name="rwkv7",
    engine="channel_delta",
    layer="elman.models.cells.channel_delta.rwkv7_layer:Rwkv7TimeMix",
    equation="S' = S C - (S k^) (a o k^)^T + v k'^T, y = S' r, out = (norm(y) + (r.(u k')) v) o g",
    source="Peng et al. 2025, RWKV-7 Goose (arXiv 2503.14456)",
    no_resets=no_resets,
    options=_OPTIONS,
    backends=("reference", "triton"),
    rule=_rule,
    package="flash-linear-attention",
    scan_flops=_scan_flops,
)
