"""Mean and spread over the runs of one model that differ only in their seed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SPREAD_DEFINITION = (
    "over seeds: the standard deviation (n - 1 in the denominator) with n, the number of distinct "
    "seeds, each counted once; two seeds give only a rough value; n=1 is a single seed, whose "
    "noise is unknown"
)


@dataclass(frozen=True)
class Spread:
    """One number over several runs.

    Args:
        values: The number of each run.
    """

    values: tuple[float, ...]

    @property
    def n(self) -> int:
        """How many runs."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)

    @property
    def sd(self) -> float | None:
        """Standard deviation of the sample; None for one run."""
        return statistics.stdev(self.values) if self.n > 1 else None

    def words(self, form: str) -> str:
        """Return the spread as text, its numbers in the format ``form``."""
        if self.sd is None:
            return "n=1"
        return f"sd {self.sd:{form}}, n={self.n}"


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return the spread of values, or None if there are none or one is missing."""
    known = tuple(value for value in values if value is not None)
    return Spread(known) if known and len(known) == len(values) else None
