"""Which compiled cell runs which write of the tape engine. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from elman.base.errors import UserError
from elman.ops.common.abi_check import cell_assertions

NO_PRODUCT = -1
"""In place of a product's number: the value that is written is the state itself."""


@dataclass(frozen=True)
class TapeRecurrence:
    """A cell of csrc/cells/tape.h.

    A compiler compares the numbers with the structure's.

    Args:
        type: The structure's C++ name.
        blocks: How many products with the state a step needs: W_h, and W_r behind it.
        value: Which of them is the value that is written, or NO_PRODUCT.
    """

    type: str
    blocks: int
    value: int

    def assertions(self, write: str) -> str:
        """Return C++ text that refuses to compile where the structure states something else.

        Args:
            write: Name of the write.
        """
        stated = {"BLOCKS": ("blocks", self.blocks), "VALUE": ("value", self.value)}
        return cell_assertions(write, self.type, "TapeRecurrence", stated, {})


CELLS: dict[str, TapeRecurrence] = {
    "full": TapeRecurrence("tape::Full", blocks=2, value=1),
    "identity": TapeRecurrence("tape::Identity", blocks=1, value=NO_PRODUCT),
    "shared": TapeRecurrence("tape::Shared", blocks=1, value=0),
}
"""By ``Write`` of :mod:`elman.ops.tape.op`, where the equations stand."""


def compiled_cell(write: str) -> TapeRecurrence:
    """Return the compiled cell of a write.

    Raises:
        UserError: it has none.
    """
    if write not in CELLS:
        raise UserError(
            f"kernels.backend=cpu: write {write} has no kernel; use kernels.backend=reference"
        )
    return CELLS[write]
