"""Layer E97: E88 with a gate for each value channel that is written and each key channel erased.

Shape legend: h heads, n key width of a head, v value width of a head.
"""

from __future__ import annotations

from dataclasses import replace

from elman.models.cells.matrix_state.e88_layer import E88
from elman.models.cells.matrix_state.e97 import CELL
from elman.ops.matrix_state.plan import Plan


class E97(E88):
    """S' = tanh(decay S + (w o v - S (e o k)) k^T), e and w = sigmoid(W x), y = S' q, per head.

    Everything else is that of :class:`~elman.models.cells.matrix_state.e88_layer.E88`, state and
    options included; its write gate multiplies the whole edit. ``linear_state`` leaves out the
    tanh, ``edit=raw`` the erasure. The row blocks ``value_gate`` and ``erase`` of the projection
    come last.
    """

    cell = CELL

    @property
    def _erases(self) -> bool:
        return self.settings.word("edit") == "split"

    def _row_blocks(self) -> dict[str, int]:
        blocks = super()._row_blocks() | {"value_gate": self.width}
        if self._erases:
            blocks["erase"] = self.heads * self.key_width
        return blocks

    def _choose_plan(self) -> Plan:
        plan, places = super()._choose_plan(), self._places()
        roles = (*plan.roles, ("g0", places["value_gate"]))
        if not self._erases:
            return replace(plan, cell="gated_write", roles=roles)
        roles = (*roles, ("z", places["erase"]))
        return replace(plan, cell="split_edit", roles=roles, key="zk", z_act="sigmoid")
