"""Cell M2RNN: a matrix state that a matrix mixes, under tanh, between two decays."""

from __future__ import annotations

from collections.abc import Mapping

from elman.models.cells.common.options import D_CONV
from elman.models.cells.declaration import Cell, Option, Value
from elman.ops.matrix_state.row_mix.spec import size_problem

_OPTIONS = {
    "n_heads": Option(64, "heads of v, of the decay, of the gate and of W", minimum=1, size=True),
    "n_state": Option(16, "value width of a head", minimum=1, size=True),
    "key_width": Option(0, "key width of a head; 0 is n_state", minimum=0, size=True),
    "shared_keys": Option(
        False, "one query and one key for all heads: the paper's shape", size=True
    ),
    "use_conv": Option(False, "causal convolution on q, k and v, and silu behind it", size=True),
    "d_conv": D_CONV,
    "use_l2_norm": Option(False, "divide q and k by their norm, per head"),
    "use_output_norm": Option(False, "RMSNorm over the reads of all heads together", size=True),
    "dropout": Option(0.0, "dropout of the layer's output", minimum=0, maximum=1, in_kernel=False),
}


def _limit(options: Mapping[str, Value]) -> str:
    """Return why no kernel can run these options: a program holds a whole state and its matrix."""
    rows, keys = options["n_state"], options["key_width"]
    assert isinstance(rows, int), rows
    assert isinstance(keys, int), keys
    return size_problem(rows, keys or rows)


CELL = Cell(
    name="m2rnn",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.m2rnn_layer:M2RNN",
    equation="S' = f S + (1 - f) tanh(W^T S + v k^T), y = S' q + D o v, out = y silu(W_g x)",
    source="matrix-state specification 13",
    options=_OPTIONS,
    backends=("reference", "triton"),
    limit=_limit,
)
