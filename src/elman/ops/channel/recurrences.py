"""The recurrences of the channel engine that have kernels. Imports no torch.

A recurrence has the same name here, in plans and in steps.py. An activation or a variant is the
last word of a name: ``e61_tanh``, ``e68_inverse``, ``e74_<update>_<nonlinearity>``. The C++
structures have words for what they compute, and :data:`CELLS` says which one is whose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elman.base.errors import UserError
from elman.ops.common.abi_check import cell_assertions

NORMS = ("", "root", "rmsnorm", "frobnorm")
"""What a step's result may be divided by, as csrc/cells/channel.h numbers it: nothing, the root of
the mean square + 1e-6 (E59), the root mean square + 1e-6, the norm + 1e-6 (both E74)."""


@dataclass(frozen=True)
class CompiledCell:
    """A recurrence of csrc/cells/channel.h, or of another package.

    A compiler compares the numbers of inputs and parameters with those of the structure.

    Args:
        type: The structure's C++ name.
        inputs: The step's sequences in the order of its ``x``.
        parameters: The step's other tensors, of one number per channel, in the order of its ``p``.
        norm: Which of :data:`NORMS` over all channels its result is divided by.
        scalars: Those of the parameters that a caller gives as one number, [1].
        code: The structure itself, where another package brings it.
    """

    type: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    norm: str = ""
    scalars: tuple[str, ...] = ()
    code: str = ""

    def assertions(self, name: str) -> str:
        """Return C++ text that refuses to compile where the structure states something else.

        Args:
            name: Name of the step.
        """
        stated = {
            "INPUTS": ("len(inputs)", len(self.inputs)),
            "PARAMETERS": ("len(parameters)", len(self.parameters)),
        }
        limits = {constant: f"MAX_{constant}" for constant in (*stated, "MEMO")}
        stated["NORM"] = (f"norm={self.norm!r}, which is", NORMS.index(self.norm))
        return cell_assertions(name, self.type, "CompiledCell", stated, limits)


_GATED = (("retain", "candidate"), ("retain_bias", "candidate_bias"))
_SCALED = (_GATED[0], (*_GATED[1], "coefficient"))
_SELF = (_GATED[0], (*_SCALED[1], "self_bias"))
_MINGRU = CompiledCell("MinGru", ("candidate", "gate"))
_MINLSTM = CompiledCell("MinLstm", ("candidate", "forget", "write"))


def _diagonal(name: str, phi: str) -> CompiledCell:
    """Return a cell of E74 with a diagonal state."""
    tanh = "true" if phi == "tanh" else "false"
    pair = ("key", "value")
    gates = ("gate_scale", "gate_bias")
    cell = {
        "delta": CompiledCell(f"DiagonalDelta<{tanh}>", pair),
        "simple": CompiledCell(f"DiagonalSimple<{tanh}>", pair, ("retain_logit",)),
        "ema": CompiledCell(f"DiagonalAverage<{tanh}>", (*pair, "retain"), ("retain_bias",)),
        "retain": CompiledCell(f"DiagonalGated<{tanh}, true>", pair, gates),
        "state": CompiledCell(f"DiagonalGated<{tanh}, false>", pair, gates),
    }[name]
    if phi in NORMS:
        return replace(cell, type=f"Normed<{cell.type}, {NORMS.index(phi)}>", norm=phi)
    return cell


CELLS: dict[str, CompiledCell] = {
    "e34": CompiledCell("Elman", ("candidate",), ("candidate_bias", "coefficient")),
    "e59": CompiledCell(
        "RunningSum", ("value",), ("value_bias", "alpha"), norm="root", scalars=("alpha",)
    ),
    "e59b": CompiledCell(
        "GatedRunningSum", ("value", "gate"), ("value_bias", "gate_bias"), norm="root"
    ),
    "e61": CompiledCell("Retained<false>", *_GATED),
    "e61_tanh": CompiledCell("Retained<true>", *_GATED),
    "e61_additive": CompiledCell("Additive", *_GATED),
    "tied": CompiledCell("Tied", ("candidate",), ("candidate_bias",)),
    "e62": CompiledCell("Overwritten", ("write", "candidate"), ("write_bias", "candidate_bias")),
    "e62_decay": CompiledCell(
        "DecayedOverwritten",
        ("write", "candidate", "retain"),
        ("write_bias", "candidate_bias", "retain_bias"),
    ),
    "e64": CompiledCell("StateInCandidate", *_GATED),
    "e65": CompiledCell("ScaledStateInCandidate", *_SCALED),
    "e67": CompiledCell("StateInGate", *_SCALED),
    "e68": CompiledCell("SelfGatedCandidate<false>", *_SELF),
    "e68_inverse": CompiledCell("SelfGatedCandidate<true>", *_SELF),
    # The parallel forms compute the same recurrences in another way, which kernels do not need.
    **dict.fromkeys(("mingru", "mingru_parallel"), _MINGRU),
    **dict.fromkeys(("minlstm", "minlstm_parallel"), _MINLSTM),
    **{
        f"e74_{name}_{phi}": _diagonal(name, phi)
        for name in ("delta", "simple", "ema", "retain", "state")
        for phi in ("tanh", "linear", "rmsnorm", "frobnorm")
    },
}
"""By the step's name."""


def compiled_cell(step: str) -> CompiledCell:
    """Return the compiled cell of a step.

    Raises:
        UserError: it has none.
    """
    if step not in CELLS:
        raise UserError(
            f"kernels.backend=cpu: step {step} has no kernel; use kernels.backend=reference"
        )
    return CELLS[step]
