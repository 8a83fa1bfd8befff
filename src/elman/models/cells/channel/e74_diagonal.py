"""Cell E74 with a diagonal state: the delta rule of every channel by itself."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.channel.options import channel_options
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option, Value

# The full matrix state has choices that a vector cannot use (z, ntm, residual, retrieved_gate, the
# input gate). They are not choices here; the original treated them as no_z, delta and output.
_OPTIONS = channel_options() | {
    "n_state": Option(64, "channels of the state", minimum=1, size=True),
    "projection": Option(
        "no_z",
        "matrices of key, value and query: no_z one each; tied_kq query = key before its norm; "
        "tied_kvq one for all three",
        choices=("no_z", "tied_kq", "tied_kvq"),
        size=True,
    ),
    "update": Option(
        "delta",
        "delta: s (1 - k^2) + v k; simple: a s + v k, a learned per channel; "
        "ema: a s + (1 - a) v k, a = sigmoid(W c + b)",
        choices=("delta", "simple", "ema"),
        size=True,
    ),
    "gate": Option(
        "output",
        "output: none; retain: a s + (1 - a) delta; state: s + a (delta - s), both with "
        "a = sigmoid(d s + b); the output is y silu(y) in every case",
        choices=("output", "retain", "state"),
        size=True,
    ),
    "nonlinearity": Option(
        "tanh",
        "around the new state: rmsnorm divides by its root mean square, frobnorm by its norm",
        choices=("tanh", "linear", "rmsnorm", "frobnorm"),
    ),
    "use_silu": Option(True, "silu after the first projection (off in the published runs)"),
}


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    wide_enough(dim, options)
    gate, update = options["gate"], options["update"]
    if gate != "output" and update != "delta":
        raise UserError(
            f"model.gate={gate} with model.update={update}: this gate needs the delta rule; "
            "use model.update=delta or model.gate=output"
        )


CELL = Cell(
    name="e74_diagonal",
    engine="channel",
    layer="elman.models.cells.channel.e74_diagonal_layer:E74Diagonal",
    equation="s' = tanh(s (1 - k^2) + v k), y = s' q, out = y silu(y)",
    source="seed 004; matrix-state specification 9",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=_rule,
)
