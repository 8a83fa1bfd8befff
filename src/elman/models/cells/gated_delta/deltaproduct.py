"""Cell Gated DeltaProduct: several delta rules in one step; package flash-linear-attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elman.models.cells.declaration import Cell, Option, Value
from elman.models.cells.gated_delta.fla_gdn import OPTIONS, fits_heads, no_resets, state_numbers

_OPTIONS = (
    {
        "n_householder": Option(
            2,
            "delta rules in a step, each with its own key and value (num_householder)",
            minimum=1,
            size=True,
        ),
        "use_forget_gate": Option(
            True, "multiply the state by a decay before each step (use_forget_gate)", size=True
        ),
    }
    | {name: option for name, option in OPTIONS.items() if name != "gate_activation"}
    | {"allow_neg_eigval": replace(OPTIONS["allow_neg_eigval"], default=True)}
)


def _scan_flops(dim: int, options: Mapping[str, Value], positions: range) -> float:
    """4 a number of the state and delta rule, 1 the decay and 2 the query's read of each step."""
    rules = options["n_householder"]
    assert isinstance(rules, int)
    each = 4 * rules + (1 if options["use_forget_gate"] else 0) + 2
    return each * state_numbers(dim, options) * len(positions)


CELL = Cell(
    name="deltaproduct",
    engine="gated_delta",
    layer="elman.models.cells.gated_delta.deltaproduct_layer:GatedDeltaProduct",
    equation="S' = c S, then S' <- S' + b_j (v_j - S' k_j) k_j^T for each j, y = S' q, "
    "out = norm(y) o silu(W x)",
    source="Siems et al. 2025, DeltaProduct (arXiv 2502.10297)",
    no_resets=no_resets,
    options=_OPTIONS,
    backends=("reference", "triton"),
    rule=fits_heads,
    package="flash-linear-attention",
    scan_flops=_scan_flops,
)
