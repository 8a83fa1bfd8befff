"""Interleaved rounds: each round times every subject once, so a slow minute affects all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elman.bench.clock import clock_for
from elman.bench.subjects import Subject

# Seconds of one measurement of a subject in a round; at least one iteration.
_SECONDS = 0.15
_MOST_ITERATIONS = 50

Parts = dict[str, float]


@dataclass(frozen=True)
class Spread:
    """Statistics of a number over all rounds.

    Attributes:
        median: Its median.
        low: Its smallest value.
        high: Its largest value.
    """

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return Spread(statistics.median(values), min(values), max(values))


def time_rounds(
    subjects: Sequence[Subject], rounds: int, progress: Callable[[int, int], None]
) -> list[list[Parts]]:
    """Return, for every subject, the seconds of each part of an iteration in each round.

    Args:
        subjects: What to time; each is warmed up first.
        rounds: Rounds.
        progress: Called with the number of finished measurements and of all.
    """
    counts = [_warm_up(subject) for subject in subjects]
    found: list[list[Parts]] = [[] for _ in subjects]
    total = rounds * len(subjects)
    for number in range(rounds):
        # The order alternates, so that no subject always follows the same one.
        order = range(len(subjects)) if number % 2 == 0 else reversed(range(len(subjects)))
        for done, index in enumerate(order, 1):
            found[index].append(_measure(subjects[index], counts[index]))
            progress(number * len(subjects) + done, total)
    return found


def totals(rounds: Sequence[Parts], parts: Sequence[str]) -> list[float]:
    """Return the sum of some parts in every round."""
    return [sum(one[part] for part in parts) for one in rounds]


def ratios(rounds: Sequence[float], base: Sequence[float]) -> Spread:
    """Return the ratio of one subject's time to another's, round by round."""
    return Spread.of([mine / other for mine, other in zip(rounds, base, strict=True)])


def _warm_up(subject: Subject) -> int:
    """Compile, fill caches, and return the number of iterations of a measurement."""
    for _ in range(2):
        seconds = sum(_measure(subject, 1).values())
    return max(1, min(_MOST_ITERATIONS, round(_SECONDS / max(seconds, 1e-6))))


def _measure(subject: Subject, iterations: int) -> Parts:
    clock = clock_for(subject.device)
    for _ in range(iterations):
        clock.start()
        subject.iterate(clock.mark)
    return {part: seconds / iterations for part, seconds in clock.read().items()}
