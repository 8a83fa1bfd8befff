"""Means, spreads, and differences between rows over their seeds, with Student's distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import permutations
from typing import Literal

import numpy as np

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


def two_sided(t: float, df: float) -> float:
    """Return the probability of a value at least as far from 0 as ``t``.

    Args:
        t: The value.
        df: Degrees of freedom, above 0; any real number, as Welch's test needs it.
    """
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -abs(t)))


@cache
def quantile(level: float, df: float) -> float:
    """Return the value that is exceeded in size with probability ``1 - level``.

    Args:
        level: Share of the distribution between minus this value and this value, as 0.95.
        df: Degrees of freedom, above 0.
    """
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + level) / 2))


def power(effect: float, df: float, alpha: float) -> float:
    """Return the probability that a two-sided test at level ``alpha`` finds an effect.

    The square of a noncentral t with this effect is a noncentral F with its square.

    Args:
        effect: The true difference over its true standard error.
        df: Degrees of freedom.
        alpha: Probability of finding an effect where there is none.
    """
    from scipy.special import ncfdtr

    return 1 - float(ncfdtr(1, df, effect**2, quantile(1 - alpha, df) ** 2))


LEVEL, POWER, MOST_SEEDS = 0.95, 0.8, 100
Method = Literal["paired", "Welch", "one seed", "pooled"]


@dataclass(frozen=True)
class Difference:
    """A row less its reference.

    Args:
        value: Mean of the row less mean of the reference, over the runs that ``method`` uses.
        method: ``paired`` by seed, ``Welch`` if the seeds are not the same, or ``one seed``: then
            there is no interval. ``pooled``: paired by seed, with the noise of all rows.
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
        return self.interval_at(1 - LEVEL)

    def interval_at(self, alpha: float) -> tuple[float, float] | None:
        """Return the interval that a true difference is outside of with probability ``alpha``."""
        if self.error is None or self.df is None:
            return None
        reach = quantile(1 - alpha, self.df) * self.error
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


def pooled(rows: Sequence[Mapping[int, float]]) -> dict[tuple[int, int], Difference]:
    """Return the difference of every two rows, by their places, paired by seed.

    A value is taken as the sum of its row's mean, an effect of its seed, and noise that is as large
    in every row. The noise is that of all rows together, so few seeds of many rows tell it well.

    Args:
        rows: Each row's values by seed. Two rows that share fewer than two seeds are left out.

    Source: Tukey, "The problem of multiple comparisons" (1953), for blocks.
    """
    noise, df = _common_noise(rows)
    differences: dict[tuple[int, int], Difference] = {}
    for first, second in permutations(range(len(rows)), 2):
        shared = rows[first].keys() & rows[second].keys()
        if len(shared) < 2 or not df:
            continue
        value = statistics.fmean(rows[first][seed] - rows[second][seed] for seed in shared)
        n, error = (len(shared), len(shared)), noise * math.sqrt(2 / len(shared))
        differences[first, second] = Difference(value, "pooled", n, error, df, noise)
    return differences


def _common_noise(rows: Sequence[Mapping[int, float]]) -> tuple[float, int]:
    """Return the standard deviation of what rows and seeds do not explain, and its df."""
    seeds = sorted({seed for row in rows for seed in row})
    cells = [(place, seed) for place, row in enumerate(rows) for seed in row]
    design = np.zeros((len(cells), len(rows) + len(seeds)))
    for line, (place, seed) in enumerate(cells):
        design[line, place] = design[line, len(rows) + seeds.index(seed)] = 1
    values = np.array([rows[place][seed] for place, seed in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, values)
    df = len(cells) - int(rank)
    squares = float(np.square(values - design @ fitted).sum())
    # What is left of equal values is rounding.
    least = len(cells) * (np.finfo(float).eps * float(np.abs(values).max(initial=0))) ** 2
    return (math.sqrt(squares / df) if df and squares > least else 0.0), df


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
    adjusted, highest = [(1.0, 1 - LEVEL)] * len(order), 0.0
    for rank, place in enumerate(order):
        left = len(order) - rank
        highest = max(highest, min(1.0, probabilities[place] * left))
        adjusted[place] = highest, (1 - LEVEL) / left
    return adjusted
