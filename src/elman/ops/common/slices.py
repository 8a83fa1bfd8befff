"""Where in its sources a recurrence's sequences lie, and plans as text. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Slice:
    """Channels of a source from ``start`` on. The sequence that lies there knows its width."""

    source: int
    start: int


def row_blocks(heights: Mapping[str, int], source: int = 0) -> dict[str, Slice]:
    """Return where the blocks of one fused projection lie, one after the other.

    Args:
        heights: Names and heights of all blocks, in order.
        source: Number of the source.
    """
    places, start = {}, 0
    for name, height in heights.items():
        places[name] = Slice(source, start)
        start += height
    return places


def as_word(plan: Any) -> str:
    """Return a plan, a dataclass, as the text that a custom operator takes as its argument."""
    given = {part.name: getattr(plan, part.name) for part in fields(plan) if part.init}
    return json.dumps(given, default=asdict)
