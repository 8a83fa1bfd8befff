"""Cell Mamba3: Mamba2 with a trapezoid rule and turning states; package mamba-ssm."""

from __future__ import annotations

from collections.abc import Mapping

from elman.base.errors import UserError
from elman.models.cells.declaration import Cell, Option, Value
from elman.models.cells.ssd.mamba2 import OPTIONS as MAMBA2
from elman.models.cells.ssd.mamba2 import heads_fit, no_resets, state_numbers

_OPTIONS = {
    name: MAMBA2[name]
    for name in ("n_state", "expansion", "head_dim", "n_groups", "dt_min", "dt_max", "dt_floor")
} | {
    "rope_fraction": Option(
        "0.5",
        "part of a state's columns that turn (rope_fraction)",
        choices=("0.5", "1.0"),
        size=True,
    ),
    "a_floor": Option(1e-4, "smallest decay rate (A_floor)", above=0),
}


def angles_of(options: Mapping[str, Value]) -> int:
    """Return how many pairs of columns turn."""
    columns, part = options["n_state"], options["rope_fraction"]
    assert isinstance(columns, int)
    assert isinstance(part, str)
    return int(columns * float(part)) // 2


def _rule(dim: int, options: Mapping[str, Value]) -> None:
    heads_fit(dim, options)
    columns = options["n_state"]
    assert isinstance(columns, int)
    if columns % 2 or angles_of(options) < 1:
        near = max(4, columns + columns % 2)
        raise UserError(f"model.n_state={columns}: pairs of columns turn; use model.n_state={near}")


def _scan_flops(dim: int, options: Mapping[str, Value], positions: range) -> float:
    """7 a number of the state and step: the decay 1, two writes 4, the read 2."""
    return 7 * state_numbers(dim, options) * len(positions)


CELL = Cell(
    name="mamba3",
    engine="ssd",
    layer="elman.models.cells.ssd.mamba3_layer:Mamba3",
    equation="S' = a S + a dt (1 - l) x- B-^T + l dt x B^T, B and C turned, "
    "out = (S' C + D x) o silu(z)",
    source="mamba-ssm 2.3.2, mamba_ssm.modules.mamba3.Mamba3 (SISO)",
    no_resets=no_resets,
    options=_OPTIONS,
    backends=("reference", "triton"),
    rule=_rule,
    package="mamba-ssm",
    scan_flops=_scan_flops,
)
