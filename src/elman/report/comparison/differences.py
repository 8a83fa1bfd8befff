"""The difference between two rows over their seeds: interval, probability, and seeds to decide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from elman.report.comparison.student import power, quantile, two_sided

LEVEL, POWER, MOST_SEEDS = 0.95, 0.8, 100
Method = Literal["paired", "Welch", "one seed"]


@dataclass(frozen=True)
class Difference:
    """A row less its reference.

    Args:
        value: Mean of the row less mean of the reference, over the runs that ``method`` uses.
        method: ``paired`` by seed, ``Welch`` if the seeds are not the same, or ``one seed``: then
            there is no interval.
        n: Runs of the row and of the reference that were used.
        error: Standard error of ``value``; None for one seed.
        df: Degrees of freedom; None for one seed.
        noise: Standard deviation between seeds, pooled over both rows; None if one has one seed.
    """

    value: float
    method: Method
    n: tuple[int, int]
    error: float | None = None
    df: float | None = None
    noise: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of Student's t; None for one seed."""
        if self.error is None or self.df is None:
            return None
        reach = quantile(LEVEL, self.df) * self.error
        return self.value - reach, self.value + reach

    @property
    def p(self) -> float | None:
        """Probability of a difference at least as large if there is none; None for one seed."""
        if self.error is None or self.df is None:
            return None
        if self.error == 0:
            return 1.0 if self.value == 0 else 0.0
        return two_sided(self.value / self.error, self.df)

    def seeds_to_decide(self, alpha: float) -> int | None:
        """Return how many more seeds a row needs to decide; None if that are too many or unknown.

        With so many, a test at level ``alpha`` finds a true difference of this size with a
        probability of 80 %, if the noise is what was seen.
        """
        if not self.error or self.df is None or self.value == 0:
            return None
        # With the seeds of each row the square of the error falls and the df rise.
        deviation = self.error * math.sqrt(self._per_seed)
        df_per_seed = self.df / (self._per_seed - 1)
        had = min(self.n)
        return _more_seeds(abs(self.value) / deviation, df_per_seed, had, alpha)

    @property
    def _per_seed(self) -> float:
        """The number of seeds in each of two equal rows that would give the same error."""
        first, second = self.n
        return 2 * first * second / (first + second)


@lru_cache(maxsize=100_000)
def _more_seeds(effect: float, df_per_seed: float, had: int, alpha: float) -> int | None:
    """Return how many more seeds than ``had`` find an effect; ``effect`` is that of one seed."""
    low, high = had, MOST_SEEDS + had + 1
    while high - low > 1:
        n = (low + high) // 2
        decides = power(effect * math.sqrt(n), df_per_seed * (n - 1), alpha) >= POWER
        low, high = (low, n) if decides else (n, high)
    return high - had if high <= MOST_SEEDS + had else None


def difference(
    row: Mapping[int | None, float], reference: Mapping[int | None, float]
) -> Difference:
    """Return the difference between two rows, given each row's values by seed.

    The values are paired if the rows share at least two seeds, and one row has no others.

    Sources: Student, "The probable error of a mean" (1908), for pairs; Welch, "The generalization
    of Student's problem" (1947).
    """
    shared = [seed for seed in row if seed in reference and seed is not None]
    if len(shared) >= 2 and len(shared) in (len(row), len(reference)):
        return _paired(
            [row[seed] - reference[seed] for seed in shared],
            _noise([row[seed] for seed in shared], [reference[seed] for seed in shared]),
        )
    first, second = list(row.values()), list(reference.values())
    if min(len(first), len(second)) < 2:
        if len(shared) == 1 and len(first) == len(second) == 1:
            return Difference(first[0] - second[0], "one seed", (1, 1))
        value = statistics.fmean(first) - statistics.fmean(second)
        return Difference(value, "one seed", (len(first), len(second)))
    return _welch(first, second)


def _paired(differences: Sequence[float], noise: float) -> Difference:
    n = len(differences)
    error = statistics.stdev(differences) / math.sqrt(n)
    return Difference(statistics.fmean(differences), "paired", (n, n), error, n - 1, noise)


def _welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    value = statistics.fmean(first) - statistics.fmean(second)
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    total, n = sum(parts), (len(first), len(second))
    # The Welch-Satterthwaite degrees of freedom; without noise any number gives the same.
    spent = sum(part**2 / (count - 1) for part, count in zip(parts, n, strict=True))
    df = total**2 / spent if spent else sum(n) - 2
    return Difference(value, "Welch", n, math.sqrt(total), df, _noise(first, second))


def _noise(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the standard deviation between seeds, pooled over two rows."""
    free = [len(first) - 1, len(second) - 1]
    squares = statistics.variance(first) * free[0] + statistics.variance(second) * free[1]
    return math.sqrt(squares / sum(free))


def holm(probabilities: Sequence[float]) -> list[tuple[float, float]]:
    """Return each probability as Holm adjusts it, and the level that it had to stay under.

    Source: Holm, "A simple sequentially rejective multiple test procedure" (1979). It keeps the
    probability of even one false claim among all comparisons below 5 %.
    """
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    found, highest = [(1.0, 1 - LEVEL)] * len(order), 0.0
    for rank, place in enumerate(order):
        left = len(order) - rank
        highest = max(highest, min(1.0, probabilities[place] * left))
        found[place] = highest, (1 - LEVEL) / left
    return found
