"""Whether trials put settings into the order that whole runs do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from elman.tuning.trials import Trial, Tuned, same_values


@dataclass(frozen=True)
class Pair:
    """One setting that was tried, and confirmed.

    Args:
        arm: Label of its arm.
        trial: Its trial.
        confirmed: Mean score of its whole runs.
        seeds: How many of those there are.
    """

    arm: str
    trial: Trial
    confirmed: float
    seeds: int


@dataclass(frozen=True)
class RankCorrelation:
    """How well trials predict the order of whole runs.

    Args:
        rho: Spearman's rank correlation over all pairs; None for fewer than three, or if all scores
            are equal.
        pairs: What it is made of.
    """

    rho: float | None
    pairs: tuple[Pair, ...]

    @property
    def same(self) -> int:
        """How many pairs of settings of one arm have the same order in both."""
        return sum(sign > 0 for sign in self._signs)

    @property
    def reverse(self) -> int:
        """How many have the reverse order."""
        return sum(sign < 0 for sign in self._signs)

    @property
    def tau(self) -> float | None:
        """Kendall's tau over the settings within arms; None without a pair of them.

        Source: Kendall, "A new measure of rank correlation" (1938).
        """
        count = self.same + self.reverse
        return (self.same - self.reverse) / count if count else None

    @property
    def _signs(self) -> list[float]:
        return [
            ((one.trial.score or 0.0) - (other.trial.score or 0.0))
            * (one.confirmed - other.confirmed)
            for one, other in combinations(self.pairs, 2)
            if one.arm == other.arm
        ]


def rank_correlation(tuned: Tuned) -> RankCorrelation:
    """Return the rank correlation of trials and confirmation, over the settings of all arms."""
    pairs = confirmed_pairs(tuned)
    scores = [(pair.trial.score or 0.0, pair.confirmed) for pair in pairs]
    rho = spearman([one for one, _ in scores], [two for _, two in scores])
    return RankCorrelation(rho, tuple(pairs))


def confirmed_pairs(tuned: Tuned) -> list[Pair]:
    """Return every setting that has a trial with a score, and whole runs with scores."""
    found = []
    for arm in tuned.arms:
        whole = [one for one in tuned.of(arm.label, "best", "second", "common") if one.scored]
        for trial in tuned.of(arm.label):
            runs = [one for one in whole if same_values(one.values, trial.values)]
            scores = [one.score for one in runs if one.score is not None]
            if trial.scored and scores:
                found.append(Pair(arm.label, trial, fmean(scores), len(scores)))
    return found


def spearman(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; None if it is undefined.

    Source: C. Spearman, The proof and measurement of association between two things, 1904.
    """
    if len(one) < 3:
        return None
    first, second = ranks(one), ranks(two)
    mean = (len(one) + 1) / 2
    products = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    squares = [sum((a - mean) ** 2 for a in each) for each in (first, second)]
    return products / math.sqrt(squares[0] * squares[1]) if all(squares) else None


def ranks(numbers: Sequence[float]) -> list[float]:
    """Return the rank of each number, from 1; equal numbers share the mean of their ranks."""
    ordered = sorted(numbers)
    return [
        fmean(place for place, other in enumerate(ordered, 1) if other == number)
        for number in numbers
    ]
