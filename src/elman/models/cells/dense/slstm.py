"""Cell sLSTM: the scalar memory cell of xLSTM."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.common.options import D_CONV, DROPOUT, expansion
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option, Value

_OPTIONS = {
    "expansion": expansion(),
    "n_heads": Option(4, "heads: blocks of the gates' matrices", minimum=1, size=True),
    "use_conv": Option(
        True, "causal convolution and silu before the input and forget gates", size=True
    ),
    "d_conv": D_CONV,
    "dropout": DROPOUT,
}


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    """Refuse a width that its heads do not share, or of which a head has one channel."""
    wide_enough(dim, options)
    ratio, heads = options["expansion"], options["n_heads"]
    assert isinstance(ratio, float)
    assert isinstance(heads, int)
    width = int(dim * ratio)
    if width % heads or width < 2 * heads:
        near = [n for n in range(1, heads) if width % n == 0 and width >= 2 * n]
        instead = f"use model.n_heads={near[-1]}" if near else "use a larger model.dim"
        raise UserError(
            f"model.n_heads={heads}: each head needs as many channels as the others, and 2 or "
            f"more, of int(model.dim * model.expansion) = {width}; {instead}"
        )


CELL = Cell(
    name="slstm",
    engine="dense",
    layer="elman.models.cells.dense.slstm_layer:SLSTM",
    equation=(
        "c' = F c + I tanh(z), n' = F n + I, h' = sigmoid(o) c'/n', m' = max(log sigmoid(f) + m, "
        "i), F = exp(log sigmoid(f) + m - m'), I = exp(i - m'), [z; o; i; f] = W x + R h + b"
    ),
    source="Beck et al. 2024, xLSTM (arXiv 2405.04517), section 2.2 and appendix A",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=_rule,
)
