"""Which setting of an arm is its best, by its trials, and which is the second best."""

from __future__ import annotations

from collections.abc import Sequence

from elman.tuning.trials import Goal, Trial, same_values


def is_better(one: float, other: float, goal: Goal) -> bool:
    """Whether a score is better than another one."""
    return one < other if goal == "minimize" else one > other


def ranked(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """Return the trials that have a score, the best first; each setting once.

    Trials of equal score keep their order, so the published setting comes before its equals.
    """
    scored = [one for one in trials if one.scored]
    sign = 1.0 if goal == "minimize" else -1.0
    by_score = sorted(scored, key=lambda one: sign * (one.score or 0.0))
    found: list[Trial] = []
    for one in by_score:
        if not any(same_values(one.values, other.values) for other in found):
            found.append(one)
    return found


def best(trials: Sequence[Trial], goal: Goal) -> Trial | None:
    """Return the best trial; None if none has a score.

    Args:
        trials: The trials of one arm.
        goal: Whether a lower score is better.
    """
    return next(iter(ranked(trials, goal)), None)


def second(trials: Sequence[Trial], goal: Goal) -> Trial | None:
    """Return the best trial of another setting than :func:`best`; None if there is none."""
    return next(iter(ranked(trials, goal)[1:]), None)
