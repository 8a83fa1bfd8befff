"""What a Triton kernel is compiled for: a plan without the places of its roles.

A spec is an argument of the kernels, so that what a plan does not have is not in its kernel.
Imports neither torch nor triton.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.recurrences import CELLS
from elman.ops.matrix_state.triton.tiles import MANY_HEADS


@dataclass(frozen=True)
class Spec:
    """A plan without the places of its roles: plans that differ in those alone share a kernel.

    Attributes:
        kind: As of :class:`~elman.ops.matrix_state.triton.cells.TritonCell`.
        tanh: Whether phi is tanh; it is linear otherwise.
        reads: Whether the cell reads the old state.
        column: Whether z scales the columns of the old state.
        decays: Whether c is the head's decay, which has a gradient.
        scales: Whether the gradient of c is needed.
        fast: Whether tanh is the GPU's own instruction.
        z_slope: The activation of z, wherever it is computed: the loop multiplies by its slope.
        packs: Whether the backward pass keeps states in fp16, as checkpoints are: tanh bounds them.
            With few heads each warp waits for its own steps, and packing makes them longer.
        fetches: Whether programs ask for numbers long before they load them: on NVIDIA. Going
            forward with many heads, others compute meanwhile.
        kept_reads: Whether the backward pass finds what each step read.

    The rest are fields of the plan. All are fields, and none is a property: Triton finds a kernel
    that it compiled earlier by the values of the fields, and does not see how they were found.
    """

    heads: int
    rows: int
    columns: int
    kind: str
    tanh: bool
    reads: bool
    column: bool
    decays: bool
    scales: bool
    q_act: str
    k_act: str
    v_act: str
    z_act: str
    z_slope: str
    q_unit: bool
    k_unit: bool
    decay: str
    write: str
    key: str
    residual: bool
    self_gate: bool
    gate_act: str
    fast: bool
    packs: bool
    fetches: bool
    kept_reads: bool = False


def spec_of(plan: Plan, kind: str, *, fast: bool, backward: bool) -> Spec:
    """Return what a plan's kernels are compiled for.

    Args:
        plan: What is computed.
        kind: The cell's.
        fast: As of :class:`Spec`.
        backward: Which pass.
    """
    cell, tanh = CELLS[plan.cell], plan.nonlinearity == "tanh"
    return Spec(
        heads=plan.heads,
        rows=plan.rows,
        columns=plan.columns,
        kind=kind,
        tanh=tanh,
        reads=cell.reads,
        column=cell.column,
        decays=cell.decays and plan.decay != "none",
        scales=not cell.keeps and not (cell.decays and plan.decay == "none"),
        q_act=plan.q_act,
        k_act=plan.k_act,
        v_act=plan.v_act,
        z_act=plan.z_act,
        z_slope=plan.z_act,
        q_unit=plan.q_unit,
        k_unit=plan.k_unit,
        decay=plan.decay,
        write=plan.write,
        key=plan.key,
        residual=plan.residual,
        self_gate=plan.self_gate,
        gate_act=plan.gate_act,
        fast=fast,
        packs=fast and tanh and plan.heads >= MANY_HEADS,
        fetches=fast and (backward or plan.heads < MANY_HEADS),
    )


@cache
def of_loop(spec: Spec, prepared: tuple[str, ...], *, kept_reads: bool = False) -> Spec:
    """Return what the loop over time is compiled for.

    Args:
        spec: Of the plan.
        prepared: The roles that are prepared before it.
        kept_reads: As of :class:`Spec`.
    """
    found = replace(spec, kept_reads=kept_reads)
    if "v" in prepared:
        found = replace(found, v_act="none")
    if "k" in prepared:
        found = replace(found, k_act="none", k_unit=False)
    if "q" in prepared:
        found = replace(found, q_act="none", q_unit=False)
    if "z" in prepared:
        found = replace(found, z_act="none")
    return replace(found, decay="given") if "decay" in prepared else found
