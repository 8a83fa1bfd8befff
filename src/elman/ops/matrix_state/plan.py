"""What one call of the matrix-state engine computes, as data. Every backend runs the same plan.

Imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from elman.ops.common.slices import Slice, as_word
from elman.ops.matrix_state.recurrences import CELLS, MatrixCell

ROLES = ("v", "g0", "g1", "gate", "decay", "write", "k", "q", "z", "read")
"""The sequences that a step reads, in the order of ``Role`` in csrc/abi/matrix_state.h."""
PARAMETERS = ("p0", "p1", "p2", "z_bias", "decay", "dt_bias", "residual", "gate_bias")
"""Tensors that do not change over time, in the order of ``Param`` in csrc/abi/matrix_state.h."""

_ON_COLUMNS = frozenset({"k", "q", "z", "read", "z_bias"})
_PER_HEAD = frozenset({"decay", "write", "dt_bias"})


@dataclass(frozen=True)
class Plan:
    """A recurrence over time with what a layer computes before and behind it.

    Per head, with S [rows, columns]::

        k, q = [unit](act(.))   v = act(.)   z = act(. + z_bias)   unit(x) = x / (norm(x) + 1e-6)
        c = decay map           w = write map
        r = S key               key: k, z o k, or a role of its own
        S' = phi(cell(S, r, ...))            y = S' q
        y += residual o v;  y = y silu(y) if self_gate;  y *= act(gate + gate_bias)

    Args:
        cell: Name in :data:`elman.ops.matrix_state.recurrences.CELLS`.
        heads: States side by side.
        rows: Value rows of a state.
        columns: Key columns of a state.
        roles: Each role by name with its place, ``source[..., start + head * width + i]``; widths
            are rows (v, g0, g1, gate), columns (k, q, z, read) or 1 (decay, write). Two roles may
            share a place.
        nonlinearity: phi: tanh or linear; rmsnorm and frobnorm run on the reference alone.
        q_act: Activation of q: none, silu or tanh; ``k_act`` and ``v_act`` likewise.
        k_act: As q_act.
        v_act: As q_act.
        z_act: Activation of z: none, sigmoid or tanh.
        q_unit: Whether q is divided by its norm + 1e-6 over the head; ``k_unit`` likewise.
        k_unit: As q_unit.
        z_bias: Whether z has a bias [heads, columns].
        decay: Map of the decay: none (1), parameter ([heads], the decay itself), sigmoid (of the
            role), mamba (of the role, with parameters decay = a_log and dt_bias [heads]).
        write: Map of the write gate: none or sigmoid.
        key: What a read multiplies the state by: k, zk (z o k) or read (a role).
        residual: Whether residual [heads, rows] o v is added to y.
        self_gate: Whether y becomes y silu(y).
        gate_act: Activation of the output gate, sigmoid or silu; none without the role ``gate``.
        gate_bias: Whether the gate has a bias [heads, rows].

    Attributes:
        text: The plan as text, the argument of the custom operators.
        parameter_names: The parameters that a call gives, in the order of :data:`PARAMETERS`.
        parameter_shapes: Their shapes, by name.
        channels: How many channels every source has at least.
        call_name: The name of a call in error messages.
        kernel_problem: Why the plan runs on the reference alone; empty if it has kernels.
    """

    cell: str
    heads: int
    rows: int
    columns: int
    roles: tuple[tuple[str, Slice], ...]
    nonlinearity: str = "tanh"
    q_act: str = "none"
    k_act: str = "none"
    v_act: str = "none"
    z_act: str = "none"
    q_unit: bool = False
    k_unit: bool = False
    z_bias: bool = False
    decay: str = "none"
    write: str = "none"
    key: str = "k"
    residual: bool = False
    self_gate: bool = False
    gate_act: str = "none"
    gate_bias: bool = False
    text: str = field(init=False, compare=False, repr=False)
    parameter_names: tuple[str, ...] = field(init=False, compare=False, repr=False)
    parameter_shapes: dict[str, tuple[int, ...]] = field(init=False, compare=False, repr=False)
    channels: tuple[int, ...] = field(init=False, compare=False, repr=False)
    call_name: str = field(init=False, compare=False, repr=False)
    kernel_problem: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        # Computed here and not when it is read: torch.compile cannot trace json.
        object.__setattr__(self, "text", as_word(self))
        object.__setattr__(self, "parameter_names", self._parameter_names())
        shapes = {name: self.parameter_shape(name) for name in self.parameter_names}
        object.__setattr__(self, "parameter_shapes", shapes)
        object.__setattr__(self, "call_name", f"matrix_state {self.label}")
        object.__setattr__(self, "channels", self._channels())
        object.__setattr__(self, "kernel_problem", self._kernel_problem())

    def __hash__(self) -> int:
        return hash(self.text)  # a string caches its hash; many caches have plans as keys

    def _check(self) -> None:
        names = [name for name, _ in self.roles]
        assert len(set(names)) == len(names), self.roles
        assert set(names) == self._needed_roles(), (set(names), self._needed_roles())
        assert self.key == "k" or self._cell.reads, self
        assert (self.gate_act != "none") == ("gate" in names), self
        assert self.z_bias <= ("z" in names), self
        assert self.gate_bias <= ("gate" in names), self

    def _needed_roles(self) -> set[str]:
        needed = {"k", "q", "v", *(f"g{i}" for i in range(self._cell.gates))}
        asked = {
            "z": self._cell.column or self.key == "zk",
            "read": self.key == "read",
            "decay": self.decay in ("sigmoid", "mamba"),
            "write": self.write == "sigmoid",
            "gate": self.gate_act != "none",
        }
        return needed | {name for name, there in asked.items() if there}

    @property
    def _cell(self) -> MatrixCell:
        return CELLS[self.cell]

    def width(self, name: str) -> int:
        """Return the numbers per head of a role or parameter."""
        if name in _PER_HEAD:
            return 1
        return self.columns if name in _ON_COLUMNS else self.rows

    def _kernel_problem(self) -> str:
        if self._cell.type is None:
            return f"{self.cell} looks at all rows of the state at once"
        if self.nonlinearity not in ("tanh", "linear"):
            return f"{self.nonlinearity} looks at the whole state at once"
        return ""

    def _parameter_names(self) -> tuple[str, ...]:
        there = {f"p{i}" for i in range(self._cell.parameters)}
        asked = {
            "z_bias": self.z_bias,
            "decay": self.decay in ("parameter", "mamba"),
            "dt_bias": self.decay == "mamba",
            "residual": self.residual,
            "gate_bias": self.gate_bias,
        }
        there |= {name for name, wanted in asked.items() if wanted}
        return tuple(name for name in PARAMETERS if name in there)

    def _channels(self) -> tuple[int, ...]:
        ends = [0] * (1 + max(place.source for _, place in self.roles))
        for name, place in self.roles:
            end = place.start + self.heads * self.width(name)
            ends[place.source] = max(end, ends[place.source])
        return tuple(ends)

    @property
    def label(self) -> str:
        """The name of the plan's kernel while it is compiled."""
        return f"{self.cell} {self.rows}x{self.columns}"

    def covers(self, source: int, channels: int) -> bool:
        """Return whether roles read every channel of a source. Roles never overlap in part."""
        slices = {
            (place.start, place.start + self.heads * self.width(name))
            for name, place in self.roles
            if place.source == source
        }
        edges = sorted(slices)
        assert all(end <= start for (_, end), (start, _) in pairwise(edges))
        return sum(end - start for start, end in slices) == channels

    def ties(self) -> tuple[int, ...]:
        """Return, for every role, the number of the first role on its slice, or -1 for itself."""
        places = dict(self.roles)
        first: dict[tuple[Slice, int], int] = {}
        found = []
        for number, name in enumerate(ROLES):
            tied = number
            if name in places:
                tied = first.setdefault((places[name], self.width(name)), number)
            found.append(-1 if tied == number else tied)
        return tuple(found)

    def parameter_shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape: [heads], [heads, rows] or [heads, columns]."""
        return (self.heads,) if name in _PER_HEAD else (self.heads, self.width(name))


@cache
def parse(text: str) -> Plan:
    """Return the plan that a text stands for."""
    raw = json.loads(text)
    roles = tuple((name, Slice(**place)) for name, place in raw.pop("roles"))
    return Plan(roles=roles, **raw)
