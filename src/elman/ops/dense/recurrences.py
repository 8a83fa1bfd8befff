"""Which compiled cell runs which step of the dense engine. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from elman.base.errors import UserError
from elman.ops.common.abi_check import cell_assertions


@dataclass(frozen=True)
class DenseRecurrence:
    """A cell of csrc/cells/dense.h, or one that another package brings with it.

    A compiler compares the numbers with the structure's.

    Args:
        type: The structure's C++ name.
        blocks: How many blocks of channels the first input and R h have.
        others: How many other inputs it has.
        states: Parts of the state, h among them.
        kept: How many of the other parts the derivative reads, the first ones.
        memo: Numbers that a channel's step leaves for its derivative.
        norm: Whether the new state is divided by its root mean square.
        scale: Whether the step has a number of its own.
        extra: Whether a second product, with U [channels, channels], stands inside the step.
        old: Whether the derivative reads the state before the step.
        new: Whether it reads the state after the step.
        code: The structure itself, where it is not one of that file.
    """

    type: str
    blocks: int = 1
    others: int = 0
    states: int = 1
    kept: int = 0
    memo: int = 0
    norm: bool = False
    scale: bool = False
    extra: bool = False
    old: bool = True
    new: bool = True
    code: str = ""

    @property
    def per_channel(self) -> bool:
        """Whether all behind the product is of one channel alone, as heads need it."""
        return not (self.norm or self.scale or self.extra)

    @property
    def parameters(self) -> int:
        """How many tensors the step has beside the recurrent matrix."""
        return int(self.scale) + int(self.extra)

    def assertions(self, name: str) -> str:
        """Return C++ text that refuses to compile where the structure states something else.

        Args:
            name: Name of the step.
        """
        words = (
            "blocks",
            "others",
            "states",
            "kept",
            "memo",
            "norm",
            "scale",
            "extra",
            "old",
            "new",
        )
        stated = {word.upper(): (word, getattr(self, word)) for word in words}
        limits = {"BLOCKS": "MAX_BLOCKS", "OTHERS": "MAX_OTHERS", "STATES": "MAX_STATES"}
        limits["MEMO"] = "MAX_DENSE_MEMO"
        return cell_assertions(name, self.type, "DenseRecurrence", stated, limits)


_of_memo = partial(DenseRecurrence, new=False)

CELLS: dict[str, DenseRecurrence] = {
    "tanh": DenseRecurrence("DensePlain<true>", old=False),
    "linear": DenseRecurrence("DensePlain<false>", old=False, new=False),
    "gru": _of_memo("DenseGru", blocks=2, others=1, memo=3, extra=True),
    "gru_reset_after": _of_memo("DenseGruResetAfter", blocks=3, others=1, memo=4),
    "lstm": _of_memo("DenseLstm", blocks=4, states=2, kept=1, memo=5, old=False),
    "slstm": _of_memo("DenseSlstm", blocks=4, states=4, kept=2, memo=7, old=False),
    "normalized_scalar": _of_memo("DenseScaled", memo=1, norm=True, scale=True, old=False),
    "normalized": _of_memo("DenseResidual<true>", others=1, memo=2, norm=True, old=False),
    "normalized_sum": _of_memo("DenseSum", norm=True, old=False),
    "mix": _of_memo("DenseMix", others=1, memo=2),
    "mix_all": _of_memo("DenseMixAll", blocks=2, memo=2),
    "mix_gate": _of_memo("DenseMixGate", others=1, memo=2),
    "two_gates": _of_memo("DenseTwoGates", others=2, memo=3),
    "two_gates_all": _of_memo("DenseTwoGatesAll", blocks=3, memo=3),
    "residual": _of_memo("DenseResidual<false>", others=1, memo=2, old=False),
}
"""By the step's name; the equations stand in :func:`elman.ops.dense.op.dense_recurrence`."""


def compiled_cell(step: str) -> DenseRecurrence:
    """Return the compiled cell of a step.

    Raises:
        UserError: it has none.
    """
    if step not in CELLS:
        raise UserError(
            f"kernels.backend=cpu: step {step} has no kernel; use kernels.backend=reference"
        )
    return CELLS[step]
