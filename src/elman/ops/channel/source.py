"""From plans to compiled CPU kernels of the channel engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from elman.base.errors import UserError
from elman.kernels.compiler import MISMATCH
from elman.ops.channel.abi import ChannelArgs, layouts
from elman.ops.channel.plan import Plan
from elman.ops.channel.recurrences import CELLS, CompiledCell, compiled_cell
from elman.ops.common.cpu_kernels import Kernel, KernelTable
from elman.ops.common.native import C_TYPES, require_cpu_dtype


@dataclass(frozen=True)
class Spec:
    """All that a kernel is compiled for; sizes and places are read when it runs.

    Args:
        cell: The cell.
        step: Its name, for people: the first of those that have it.
        slots: The slice that each of the cell's inputs reads, numbered.
        unit: Number of the input that is divided by its norm, or -1.
        query: Number of the slice that the state is multiplied by, or -1.
        self_gate: Whether y silu(y) is returned instead of y.
        dtype: What it reads, computes in and writes.
        resets: Whether some steps begin with a state of zeros.
    """

    cell: CompiledCell
    step: str
    slots: tuple[int, ...]
    unit: int
    query: int
    self_gate: bool
    dtype: torch.dtype
    resets: bool = False

    def structure(self, name: str) -> str:
        """Return the C++ ``Spec`` of csrc/cpu/channel/engine.h."""
        number, flag = "static constexpr int", "static constexpr bool"
        return (
            f"struct {name} {{\n{self.cell.code}"
            f"    using T = {C_TYPES[self.dtype]};\n"
            f"    using Cell = {self.cell.type};\n"
            f"{self.cell.assertions(self.step)}"
            f"    {number} SLOTS = {max(*self.slots, self.query) + 1};\n"
            f"    {number} SLOT[] = {{{', '.join(map(str, self.slots))}}};\n"
            f"    {number} UNIT = {self.unit}, QUERY = {self.query};\n"
            f"    {flag} SELF_GATE = {str(self.self_gate).lower()};\n"
            f"    {flag} RESETS = {str(self.resets).lower()};\n"
            "};\n"
        )


def spec_for(plan: Plan, dtype: torch.dtype, *, resets: bool = False) -> Spec:
    """Return what a plan's kernel is compiled for.

    Raises:
        UserError: there is no kernel for its step or dtype.
    """
    cell = compiled_cell(plan.step)
    require_cpu_dtype(dtype)
    places, slices = dict(plan.inputs), plan.slices()
    if set(places) != set(cell.inputs):
        raise UserError(
            f"cell {plan.step}: its layer gives the inputs {', '.join(places)}, its CompiledCell "
            f"declares {', '.join(cell.inputs)}; {MISMATCH}"
        )
    return Spec(
        cell=cell,
        step=next(name for name, one in CELLS.items() if one == cell),
        slots=tuple(slices.index(places[name]) for name in cell.inputs),
        unit=-1 if plan.unit is None else cell.inputs.index(plan.unit),
        query=-1 if plan.query is None else slices.index(plan.query),
        self_gate=plan.self_gate,
        dtype=dtype,
        resets=resets,
    )


KERNELS = KernelTable("channel", ChannelArgs, layouts, Spec.structure)
"""Those that this process has loaded."""


@cache
def kernel_for(plan: Plan, dtype: torch.dtype, *, resets: bool) -> Kernel:
    """Return a plan's kernel, compiled if it was not compiled before."""
    spec = spec_for(plan, dtype, resets=resets)
    KERNELS.prepare([spec], f"{plan.step} {C_TYPES[dtype]}{' with resets' if resets else ''}")
    return KERNELS.loaded[spec]
