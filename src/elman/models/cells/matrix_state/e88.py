"""Cell E88: delta rule on a square or rectangular matrix state per head, with tanh."""

from __future__ import annotations

import math
from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.common.options import D_CONV
from elman.models.cells.declaration import Cell, Option, Value

OPTIONS = {
    "n_heads": Option(8, "heads, each with its own state", minimum=1, size=True),
    "n_state": Option(32, "key width of a head: columns of its state", minimum=1, size=True),
    "expansion": Option(
        1.0, "value width of all heads together over n_heads * n_state", above=0, size=True
    ),
    "use_conv": Option(False, "causal convolution on q, k and v before their silu", size=True),
    "d_conv": D_CONV,
    "use_silu": Option(True, "silu on q, k and v"),
    "use_l2_norm": Option(True, "divide q and k by their norm + 1e-6, per head"),
    "decay_mode": Option(
        "mamba",
        "decay per head: mamba exp(-exp(A) softplus(W x + dt)), simple sigmoid(W x), "
        "constant sigmoid(l), none 1",
        choices=("mamba", "simple", "constant", "none"),
        size=True,
    ),
    "linear_state": Option(False, "leave out the tanh around the new state"),
    "use_write_gate": Option(
        False, "multiply each head's write by sigmoid(W x), one number per head", size=True
    ),
    "use_value_residual": Option(False, "add D * v to each head's read, D learned", size=True),
    "use_self_gate": Option(
        False, "multiply each read by its own silu (the first version, 2026-01-20)"
    ),
    "use_output_norm": Option(False, "RMSNorm of each head's read, gain shared", size=True),
    "phantom_norm_gain": Option(
        False,
        "keep the output norm's gain as a frozen, unused parameter: counts of January 2026",
        size=True,
        needs={"use_output_norm": False},
    ),
    "use_gate": Option(False, "multiply the read by an activation of W x", size=True),
    "gate_activation": Option(
        "sigmoid",
        "activation of the output gate",
        choices=("sigmoid", "silu"),
        needs={"use_gate": True},
    ),
    "head_mix": Option(
        "concat",
        "how heads meet: concat and per_head [D, H v] (per_head: each head's block drawn by "
        "itself), or a sum of heads and [D, v]: sum, weighted_sum (softmax of learned weights), "
        "input_weighted (softmax of W x)",
        choices=("concat", "weighted_sum", "per_head", "input_weighted", "sum"),
        size=True,
    ),
    "tie_kv": Option(False, "values are the keys after convolution and silu", size=True),
    "qkv_init": Option(
        "fused",
        "Xavier bound of q, k, v: of the fused matrix, or of each by itself (until 2026-01-21)",
        choices=("fused", "separate"),
        needs={"tie_kv": False},
        in_kernel=False,
    ),
    "dropout": Option(0.0, "dropout of the layer's output", minimum=0, maximum=1, in_kernel=False),
}


def heads_fit(dim: int, options: Mapping[str, Value]) -> None:
    """Raise UserError if the values do not divide into heads or cannot be tied to the keys."""
    heads, state = options["n_heads"], options["n_state"]
    expansion = options["expansion"]
    assert isinstance(heads, int)
    assert isinstance(state, int)
    assert isinstance(expansion, float)
    if options["tie_kv"] and expansion != 1.0:
        raise UserError(
            f"model.tie_kv=true with model.expansion={expansion:g}: tied values are as wide as "
            "the keys; add model.expansion=1.0 or model.tie_kv=false"
        )
    width = int(heads * state * expansion)
    if width % heads or width < heads:
        per_head = max(1, width // heads)
        near = [_expansion(heads, state, value) for value in (per_head, per_head + 1)]
        raise UserError(
            f"model.expansion={expansion:g}: {width} value channels do not divide into "
            f"{heads} heads; use model.expansion={near[0]} or {near[1]}"
        )


def _expansion(heads: int, state: int, value_width: int) -> str:
    """Return a short decimal whose truncated width is ``value_width`` per head."""
    exact = value_width / state
    candidates = [f"{exact:g}"]
    # Upwards, because the width is truncated.
    candidates += [f"{math.ceil(exact * 10**n) / 10**n:.{n}f}" for n in range(2, 12)]
    for text in candidates:
        if int(heads * state * float(text)) == heads * value_width:
            return text
    return repr(math.nextafter(exact, math.inf))


CELL = Cell(
    name="e88",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e88_layer:E88",
    equation="S' = tanh(decay S + (v - S k) k^T), y = S' q",
    source="seed 004; matrix-state specification 12",
    options=OPTIONS,
    backends=("reference", "cpu", "triton", "cuda"),
    rule=heads_fit,
)
