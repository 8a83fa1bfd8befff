"""Cell llama: the transformer baseline, attention and SwiGLU as two residual blocks."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.declaration import Cell, Option, Value


def _whole_heads(dim: int, options: Mapping[str, Value]) -> None:
    """Raise UserError unless a head fits into dim and its channels pair up."""
    size = options["head_dim"]
    assert isinstance(size, int)
    if size % 2:
        raise UserError(
            f"model.head_dim={size}: rotary embedding turns pairs of channels; "
            f"use model.head_dim={size + 1}"
        )
    if size > dim:
        raise UserError(
            f"model.head_dim={size}: leaves no head in model.dim={dim}; "
            f"use model.head_dim={max(2, dim // 2 * 2)} or less"
        )


def _no_resets(options: Mapping[str, Value]) -> str:
    return "its attention sees every position before"


def _scan_flops(dim: int, options: Mapping[str, Value], positions: range) -> float:
    """4 a channel and position attended to: 2 for its score, 2 for the sum of the values."""
    size, context = options["head_dim"], options["context"]
    assert isinstance(size, int)
    assert isinstance(context, int)
    seen = sum(min(place + 1, context or place + 1) for place in positions)
    return 4 * (dim // size * size) * seen


CELL = Cell(
    name="llama",
    engine="torch",
    layer="elman.models.cells.torch.llama_layer:Llama",
    equation="a = attention(norm x), out = a + W_2 (silu(W_1 n) o W_3 n), n = norm(x + a)",
    source="lm-and-training specification 5.3 and 6",
    no_resets=_no_resets,
    options={
        "head_dim": Option(
            64,
            "channels of an attention head, of which dim has dim // head_dim",
            minimum=2,
            size=True,
        ),
        "mlp_width": Option(
            0,
            "width of the SwiGLU; 0 is int(8/3 dim) rounded up to a multiple of 256",
            minimum=0,
            size=True,
        ),
        "rope_theta": Option(10000.0, "base of the rotary embedding's wavelengths", above=0),
        "context": Option(
            0,
            "bytes that a position attends to, itself included; 0 is every one before it, so that "
            "the state grows by a row per byte",
            minimum=0,
        ),
    },
    backends=("torch", "cuda"),
    rule=_whole_heads,
    own_norms=True,
    scan_flops=_scan_flops,
)
