"""Cell E0: the stock Elman recurrence with a learned gate."""

from __future__ import annotations

from collections.abc import Mapping

from elman.errors import UserError
from elman.models.registry.dense import CONV, DROPOUT, EXPANSION, norm_options
from elman.models.registry.spec import Cell, Option, Value
from elman.models.registry.width import wide_enough

_GAIN = Option(
    0.1,
    "gain of the recurrent matrix's Xavier start; not with recurrent_norm=scaled_orthogonal",
    above=0,
)
_OPTIONS = {
    "expansion": EXPANSION,
    **norm_options(0.99),
    "recurrent_norm": Option(
        "spectral",
        "constraint of the recurrent matrix: spectral rescales it to spectral_radius; "
        "scaled_orthogonal is a fixed orthogonal matrix times one learned factor",
        choices=("spectral", "none", "scaled_orthogonal"),
        size=True,
    ),
    "recurrent_gain": _GAIN,
    **CONV,
    "use_conv": Option(
        False, "causal convolution and silu after the first projection; else neither", size=True
    ),
    "dropout": DROPOUT,
}


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    wide_enough(dim, options)
    gain = options["recurrent_gain"]
    if options["recurrent_norm"] == "scaled_orthogonal" and gain != _GAIN.default:
        raise UserError(
            f"model.recurrent_gain={gain}: not read with model.recurrent_norm=scaled_orthogonal; "
            "use model.recurrent_norm=spectral or drop model.recurrent_gain"
        )


CELL = Cell(
    name="e0",
    engine="dense",
    layer="elman.models.layers.e0:E0",
    equation="h' = tanh(W_x u + W_h h + b), out = h' silu(W_g u + b_g)",
    source="seed 004; vector-state specification 3.1",
    options=_OPTIONS,
    rule=_rule,
)
