"""Plans for measurements: any recurrence, its roles one after another in a single source.

Imports no torch.
"""

from __future__ import annotations

from typing import Any

from elman.ops.common.slices import row_blocks
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.recurrences import CELLS

_ON_COLUMNS = ("q", "k", "z", "read")
_OF_HEAD = ("decay", "write")


def stacked_plan(cell: str, heads: int, rows: int, columns: int, **options: Any) -> Plan:
    """Return a plan whose roles follow each other in one source, with heads side by side in each.

    Args:
        cell: Name in :data:`elman.ops.matrix_state.recurrences.CELLS`.
        heads: States side by side.
        rows: Value rows of a state.
        columns: Key columns of a state.
        options: Further arguments of :class:`~elman.ops.matrix_state.plan.Plan`.
    """
    needs = CELLS[cell]
    names = ["q", "k", "v", *(f"g{i}" for i in range(needs.gates))]
    if needs.column or options.get("key") == "zk":
        names.append("z")
    if options.get("key") == "read":
        names.append("read")
    if options.get("gate_act", "none") != "none":
        names.append("gate")
    names += [name for name in _OF_HEAD if options.get(name) in ("sigmoid", "mamba")]
    widths = {name: columns if name in _ON_COLUMNS else rows for name in names}
    widths |= dict.fromkeys(set(_OF_HEAD) & set(names), 1)
    places = row_blocks({name: heads * width for name, width in widths.items()})
    return Plan(cell, heads, rows, columns, tuple(places.items()), **options)


DELTA = {
    "q_act": "silu",
    "k_act": "silu",
    "v_act": "silu",
    "q_unit": True,
    "k_unit": True,
    "decay": "mamba",
}
"""What E88 has around the cell ``delta``."""
E70 = {"decay": "parameter", "self_gate": True}
"""What E70 has around the cell ``decayed``."""
E75 = {"k_unit": True, "self_gate": True}
"""What E75 has around the cell ``row_gated_delta``."""
