"""What one call of the channel engine computes, as data. Every backend runs the same plan.

Imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache

from elman.ops.common.slices import Slice, as_word


@dataclass(frozen=True)
class Plan:
    """A recurrence with what a layer computes before and behind it.

    Args:
        step: Name of the step; its equation stands in :mod:`elman.ops.channel.steps`.
        inputs: The step's sequences by name, and where each lies.
        unit: Name of the input that is divided by its norm over the channels + 1e-6, or None.
        query: Sequence that multiplies the state, or None.
        self_gate: Whether y silu(y) is returned instead of y.

    Attributes:
        text: The plan as text, the argument of the custom operators.
        starts: Where the last slice of every source begins.
    """

    step: str
    inputs: tuple[tuple[str, Slice], ...]
    unit: str | None = None
    query: Slice | None = None
    self_gate: bool = False
    text: str = field(init=False, compare=False, repr=False)
    starts: tuple[int, ...] = field(init=False, compare=False, repr=False)
    _slices: tuple[Slice, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Computed here and not when it is read: torch.compile cannot trace json.
        object.__setattr__(self, "text", as_word(self))
        mentioned = [place for _, place in self.inputs]
        if self.query is not None:
            mentioned.append(self.query)
        object.__setattr__(self, "_slices", tuple(dict.fromkeys(mentioned)))
        starts = [0] * (1 + max(place.source for place in mentioned))
        for place in mentioned:
            starts[place.source] = max(place.start, starts[place.source])
        object.__setattr__(self, "starts", tuple(starts))

    def __hash__(self) -> int:
        return hash(self.text)  # a string caches its hash; many caches have plans as keys

    def slices(self) -> tuple[Slice, ...]:
        """Return every distinct slice that is read, in the order of first mention."""
        return self._slices


@cache
def parse(text: str) -> Plan:
    """Return the plan that a text stands for."""
    raw = json.loads(text)
    inputs = tuple((name, Slice(**place)) for name, place in raw.pop("inputs"))
    query = raw.pop("query")
    return Plan(inputs=inputs, query=None if query is None else Slice(**query), **raw)
