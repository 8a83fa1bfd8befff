"""How the next byte of a text is chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """How a byte is chosen; the filters apply in this order.

    Attributes:
        temperature: 0 always takes the most probable byte.
        top_k: Draw among the k most probable bytes; 0 is off.
        top_p: Draw among the smallest set with this probability; 1 is off.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
