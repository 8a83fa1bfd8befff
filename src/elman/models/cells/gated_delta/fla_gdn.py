"""Cell Gated DeltaNet: the gated delta rule; package flash-linear-attention."""

from __future__ import annotations

import math
from collections.abc import Mapping

from elman.base.errors import UserError
from elman.kernels import flash_qla
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option, Value

OPTIONS = {
    "n_heads": Option(
        0,
        "heads (num_heads); 0 is dim // 128, at least 1, lowered until it divides dim",
        minimum=0,
        size=True,
    ),
    "head_dim": Option(0, "key width of a head; 0 is dim / heads", minimum=0, size=True),
    "expansion": Option(
        2.0, "value width of a head over its key width (expand_v)", above=0, size=True
    ),
    "use_gate": Option(
        True, "multiply the normed read by an activation of W x (use_gate)", size=True
    ),
    "gate_activation": Option(
        "silu",
        "activation of the output gate (output_gate_activation)",
        choices=("silu", "sigmoid"),
        needs={"use_gate": True},
    ),
    "use_conv": Option(
        True, "causal convolution on q, k and v before their silu (use_short_conv)", size=True
    ),
    "d_conv": Option(
        4, "taps of the convolution (conv_size)", minimum=2, size=True, needs={"use_conv": True}
    ),
    "conv_bias": Option(
        False, "add a bias to the convolution", size=True, needs={"use_conv": True}
    ),
    "allow_neg_eigval": Option(
        False, "double the strength of a write, so that eigenvalues reach -1"
    ),
    "norm_eps": Option(1e-5, "added to the mean square of a head's read", above=0),
}


def heads_of(dim: int, n_heads: int) -> int:
    """Return the heads in force: as given, or dim // 128 lowered until it divides ``dim``."""
    return n_heads or next(h for h in range(max(1, dim // 128), 0, -1) if dim % h == 0)


def fits_heads(dim: int, options: Mapping[str, Value]) -> None:
    """Raise UserError if heads, their width or the expansion do not fit ``dim``."""
    wide_enough(dim, options)
    given, size, ratio = options["n_heads"], options["head_dim"], options["expansion"]
    assert isinstance(given, int)
    assert isinstance(size, int)
    assert isinstance(ratio, float)
    heads = heads_of(dim, given)
    if not size and dim % heads:
        fits = [h for h in range(1, dim + 1) if dim % h == 0]
        near = min(fits, key=lambda h: abs(h - heads))
        raise UserError(
            f"model.n_heads={given}: does not divide model.dim={dim}; "
            f"use model.n_heads={near} or name model.head_dim"
        )
    keys = size or dim // heads
    # As in the package, a fraction of a channel is refused, not rounded.
    if not math.isclose(keys * ratio, int(keys * ratio), rel_tol=1e-5) or keys * ratio < 1:
        near_width = max(1, round(keys * ratio))
        raise UserError(
            f"model.expansion={ratio:g}: {keys * ratio:g} values for a head of {keys} keys is not "
            f"a whole number; use model.expansion={near_width / keys!r}"
        )


def no_resets(options: Mapping[str, Value]) -> str:
    """Return why no layer of this package can zero its state where a document starts."""
    return "its package has no reset of a row's state"


def _head_sizes(dim: int, options: Mapping[str, Value]) -> tuple[int, int, int]:
    """Return the heads, and the keys and values of each."""
    given, size, ratio = options["n_heads"], options["head_dim"], options["expansion"]
    assert isinstance(given, int)
    assert isinstance(size, int)
    assert isinstance(ratio, float)
    heads = heads_of(dim, given)
    keys = size or dim // heads
    return heads, keys, round(keys * ratio)


def state_numbers(dim: int, options: Mapping[str, Value]) -> int:
    """Return how many numbers the states of all heads of a layer have: heads x values x keys."""
    heads, keys, values = _head_sizes(dim, options)
    return heads * keys * values


def _of_flash_qla(dim: int, options: Mapping[str, Value]) -> str:
    """Return why FlashQLA does not compute this layer, or an empty text."""
    _, keys, values = _head_sizes(dim, options)
    return flash_qla.refusal(keys, values, negative=options["allow_neg_eigval"] is True)


def delta_rule_flops(dim: int, options: Mapping[str, Value], positions: range) -> float:
    """7 a number of the state and step: decay 1, the read of the key 2, write 2, the query's 2."""
    return 7 * state_numbers(dim, options) * len(positions)


CELL = Cell(
    name="fla_gdn",
    engine="gated_delta",
    layer="elman.models.cells.gated_delta.fla_gdn_layer:GatedDeltaNet",
    equation="S' = c S + b (v - c S k) k^T, y = S' q, out = norm(y) o silu(W x)",
    source="Yang, Kautz and Hatamizadeh 2025; lm-and-training specification 5.2",
    no_resets=no_resets,
    options=OPTIONS,
    backends=("reference", "triton"),
    rule=fits_heads,
    on_request={flash_qla.NAME: _of_flash_qla},
    package="flash-linear-attention",
    scan_flops=delta_rule_flops,
)
