"""The recurrences of the matrix-state engine by the names that plans use. Imports no torch.

steps.py computes each of them under the same name. The C++ structure in csrc/cells/matrix_state.h
has the same words in CamelCase, and an activation or ``inverse`` as a template argument. Relatives
share a structure: ``forgetting`` and ``full_gated_*`` are RowGated, and ``state_gated_delta`` and
``retain_gated_delta`` are EnergyGatedDelta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elman.base.errors import UserError
from elman.ops.common.abi_check import cell_assertions

MOST_GATES, MOST_PARAMETERS = 2, 3
"""Of a row; MAX_GATES and MAX_PARAMS of csrc/cells/matrix_state.h."""


@dataclass(frozen=True)
class MatrixCell:
    """One recurrence: how the new state follows from the old one.

    Its structure states all of this but ``code``, too, and a compiler compares the two
    (:meth:`assertions`).

    Args:
        type: Its structure in csrc/cells/matrix_state.h (C++, namespace elman). None: it runs on
            the reference alone.
        gates: How many gate logits a row has: roles ``g0``, ``g1``.
        parameters: How many parameters a row has: ``p0``, ``p1``, ``p2``, each [heads, rows].
        reads: Whether it reads the old state with a key.
        energy: Whether it needs the mean square of a row of the old state.
        column: Whether z scales the columns of the old state.
        keeps: Whether it scales the rows of the old state by 1.
        decays: Whether it scales them by the decay alone.
        element: Whether its elements are not c S + w k.
        code: The structure itself, where another package brings it.

    Raises:
        UserError: a row has more gates or parameters than the engine knows.
    """

    type: str | None
    gates: int = 0
    parameters: int = 0
    reads: bool = False
    energy: bool = False
    column: bool = False
    keeps: bool = False
    decays: bool = False
    element: bool = False
    code: str = ""

    def __post_init__(self) -> None:
        for name, most in (("gates", MOST_GATES), ("parameters", MOST_PARAMETERS)):
            if not 0 <= (given := getattr(self, name)) <= most:
                raise UserError(
                    f"MatrixCell({self.type}): {name}={given}: a row has 0 to {most}; "
                    "give the rest as sequences or in the step"
                )

    def assertions(self, name: str) -> str:
        """Return C++ text that refuses to compile where the structure states something else.

        Args:
            name: The cell's, as plans name it.
        """
        assert self.type is not None
        words = {
            "GATES": "gates",
            "PARAMS": "parameters",
            "READ": "reads",
            "ENERGY": "energy",
            "COLUMN": "column",
            "KEEP": "keeps",
            "DECAYS": "decays",
            "HOOK": "element",
        }
        stated = {constant: (word, getattr(self, word)) for constant, word in words.items()}
        limits = {"GATES": "MAX_GATES", "PARAMS": "MAX_PARAMS"}
        return cell_assertions(name, self.type, "MatrixCell", stated, limits)


_ENERGY_GATED: Any = {"parameters": 2, "reads": True, "energy": True, "keeps": True}
CELLS: dict[str, MatrixCell] = {
    # S' = phi(c S + w k^T), w = v; c is the decay, act(g0 [+ p0]), z_j, or a product of them.
    "decayed": MatrixCell("Decayed", decays=True),
    "forgetting": MatrixCell("RowGated<Act::sigmoid, false>", gates=1),
    **{
        f"row_gated_{act}": MatrixCell(f"RowGated<Act::{act}, true>", gates=1, parameters=1)
        for act in ("sigmoid", "tanh", "none")
    },
    **{
        f"full_gated_{act}": MatrixCell(
            f"RowGated<Act::{act}, true, true>", gates=1, parameters=1, column=True
        )
        for act in ("sigmoid", "tanh", "none")
    },
    "column_gated": MatrixCell("ColumnGated", column=True, keeps=True),
    "gated_write": MatrixCell("GatedWrite", gates=1, decays=True),
    "averaged": MatrixCell("Averaged", gates=1, parameters=1),
    # The delta rule, w from v - r.
    "delta": MatrixCell("Delta", reads=True, decays=True),
    "split_edit": MatrixCell("SplitEdit", gates=1, reads=True, decays=True),
    "row_gated_delta": MatrixCell("RowGatedDelta", gates=1, parameters=1, reads=True),
    **{
        f"scaled_read_delta_{act}": MatrixCell(
            f"ScaledReadDelta<Act::{act}>", gates=1, parameters=1, reads=True, keeps=True
        )
        for act in ("sigmoid", "tanh", "none")
    },
    "write_gated_delta": MatrixCell(
        "WriteGatedDelta", gates=1, parameters=1, reads=True, keeps=True
    ),
    "error_gated_delta": MatrixCell(None, gates=1, parameters=1, reads=True),
    "state_gated_delta": MatrixCell("EnergyGatedDelta<false>", **_ENERGY_GATED),
    "retain_gated_delta": MatrixCell("EnergyGatedDelta<true>", **_ENERGY_GATED),
    # Gates that read the state.
    "read_gated": MatrixCell("ReadGated", gates=1, parameters=2, reads=True),
    "value_gated": MatrixCell("ValueGated<false>", gates=1, parameters=3, reads=True),
    "value_gated_inverse": MatrixCell("ValueGated<true>", gates=1, parameters=3, reads=True),
    # Elements that are not c S + w k.
    "erase_write": MatrixCell("EraseWrite", gates=2, parameters=2, element=True),
    "residual": MatrixCell("Residual", parameters=1, reads=True, element=True),
}
"""By the name that plans use. The equations stand in csrc/cells/matrix_state.h and, a second time,
in :mod:`elman.ops.matrix_state.steps`."""
