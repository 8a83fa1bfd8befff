"""From a plan to the C++ text that the engines are compiled with. Imports no torch."""

from __future__ import annotations

from functools import cache

from elman.ops.common.abi_check import same
from elman.ops.matrix_state.plan import PARAMETERS, ROLES, Plan
from elman.ops.matrix_state.recurrences import CELLS


def spec_source(
    plan: Plan,
    name: str,
    *,
    io: str = "float",
    state: str = "float",
    hidden: bool = False,
    resets: bool = False,
) -> str:
    """Return the C++ structure of compile-time choices that csrc/abi/matrix_state.h describes.

    Where the roles lie is no part of it: plans that differ in that alone share a kernel.

    Args:
        plan: What is computed.
        name: Name of the structure.
        io: C++ type of the sources and of the output.
        state: C++ type of everything else.
        hidden: Whether it, and with it all that is compiled from it, is invisible to other
            libraries of the process, which have structures of the same name.
        resets: Whether it reads a mask of resets.
    """
    assert not plan.kernel_problem, plan
    cell = CELLS[plan.cell]
    assert cell.type is not None
    acts = {
        "Q_ACT": plan.q_act,
        "K_ACT": plan.k_act,
        "V_ACT": plan.v_act,
        "Z_ACT": plan.z_act,
        "GATE_ACT": plan.gate_act,
    }
    flags = {
        "TANH": plan.nonlinearity == "tanh",
        "Q_UNIT": plan.q_unit,
        "K_UNIT": plan.k_unit,
        "Z_BIAS": plan.z_bias,
        "RESIDUAL": plan.residual,
        "SELF_GATE": plan.self_gate,
        "GATE": plan.gate_act != "none",
        "GATE_BIAS": plan.gate_bias,
        "RESETS": resets,
    }
    lines = [
        "namespace elman {",
        *(["namespace {"] if hidden else []),
        f"struct {name} {{",
        *([cell.code] if cell.code else []),
        f"  using Cell = {cell.type};",
        cell.assertions(plan.cell) + order_assertions(),
        f"  using IO = {io};",
        f"  using State = {state};",
        f"  static constexpr int R = {plan.rows}, N = {plan.columns};",
        *(f"  static constexpr Act {key} = Act::{act};" for key, act in acts.items()),
        *(f"  static constexpr bool {key} = {str(on).lower()};" for key, on in flags.items()),
        f"  static constexpr Map DECAY = Map::{plan.decay}, WRITE = Map::{plan.write};",
        f"  static constexpr Key KEY = Key::{plan.key};",
        f"  static constexpr int TIE[ROLES] = {{{', '.join(map(str, plan.ties()))}}};",
        "};",
        *(["}"] if hidden else []),
        "}  // namespace elman",
    ]
    return "\n".join(lines) + "\n"


@cache
def order_assertions() -> str:
    """Return C++ text that compares the order of roles with csrc/abi/matrix_state.h."""
    lines = []
    for kind, names in (("ROLE", ROLES), ("PARAM", PARAMETERS)):
        places = {f"{kind}_{name.upper()}": place for place, name in enumerate(names)}
        for word, place in (places | {f"{kind}S": len(names)}).items():
            message = f"plan.py has {word} as number {place}, csrc/abi/matrix_state.h as another"
            lines.append(same(f"int(elman::{word})", place, message))
    return "".join(lines)
