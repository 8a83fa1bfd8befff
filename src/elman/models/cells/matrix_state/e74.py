"""Cell E74, full matrix state: the delta rule and its alternatives."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.common.width import wide_enough
from elman.models.cells.declaration import Cell, Option, Value
from elman.models.cells.matrix_state.options import matrix_options

_OPTIONS = matrix_options() | {
    "projection": Option(
        "no_z",
        "projections: no_z k, v, q; full also z, which scales the columns that are read; "
        "tied_kq q = k; tied_kvq q = k = v",
        choices=("no_z", "full", "tied_kq", "tied_kvq"),
        size=True,
    ),
    "update": Option(
        "delta",
        "rule: delta, residual (tanh of the write), ntm (erase and write gates), retrieved_gate "
        "(gated write), ema (row gate), simple (one decay)",
        choices=("delta", "residual", "ntm", "retrieved_gate", "ema", "simple"),
        size=True,
    ),
    "error_gate": Option(
        False,
        "add the mean squared error of the read to the logits of the write gate",
        needs={"update": "retrieved_gate"},
    ),
    "gate": Option(
        "output",
        "output y silu(y); input y silu(W c + b); retain and state self-gate the output and scale "
        "each row's write by 1 - a or a, a = sigmoid(d mean_j S_ij^2 + b)",
        choices=("output", "input", "retain", "state"),
        size=True,
    ),
    "nonlinearity": Option(
        "tanh",
        "applied to the new state; the norms divide it by its RMS or Frobenius norm + 1e-6",
        choices=("tanh", "linear", "rmsnorm", "frobnorm"),
    ),
    "use_silu": Option(True, "silu after the first projection (off in the runs over n_state)"),
}

# The options keep the published names, so that saved runs still load. Plans, steps and kernels have
# names that say what the recurrence does.
_RECURRENCES = {
    "delta": "delta",
    "residual": "residual",
    "ntm": "erase_write",
    "retrieved_gate": "write_gated_delta",
    "ema": "averaged",
    "simple": "decayed",
}


def recurrence_of(update: str, gate: str, *, error_gate: bool) -> str:
    """Return the name of a recurrence in :data:`elman.ops.matrix_state.recurrences.CELLS`.

    Args:
        update: ``model.update``.
        gate: ``model.gate``; it acts on the delta rule alone.
        error_gate: ``model.error_gate``; it acts on ``retrieved_gate`` alone.
    """
    if update == "delta" and gate in ("retain", "state"):
        return f"{gate}_gated_delta"
    if update == "retrieved_gate" and error_gate:
        return "error_gated_delta"
    return _RECURRENCES[update]


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    wide_enough(dim, options)
    update = options["update"]
    if update == "delta":
        return
    if options["gate"] in ("retain", "state"):
        raise UserError(
            f"model.gate={options['gate']} with model.update={update}: this gate needs the delta "
            "rule; use model.update=delta, or model.gate=output or input"
        )
    if options["projection"] == "full":
        raise UserError(
            f"model.projection=full with model.update={update}: only the delta rule reads z; "
            "use model.projection=no_z or model.update=delta"
        )


def _limit(options: Mapping[str, Value]) -> str:
    """Return why no kernel can run these options: kernels run the state's rows separately."""
    if options["error_gate"]:
        return "model.error_gate=true looks at all rows of the state at once"
    if options["nonlinearity"] not in ("tanh", "linear"):
        return f"model.nonlinearity={options['nonlinearity']} looks at the whole state at once"
    return ""


CELL = Cell(
    name="e74",
    engine="matrix_state",
    layer="elman.models.cells.matrix_state.e74_layer:E74",
    equation="S' = tanh(S + (v - S k) k^T), y = S' q, out = y silu(y)",
    source="seed 004; matrix-state specification 9",
    options=_OPTIONS,
    backends=("reference", "cpu", "cuda"),
    rule=_rule,
    limit=_limit,
)
