"""Whether a best value is at the edge of what was tried: then it is not a best value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from elman.tuning.choice import best, is_better
from elman.tuning.trials import Goal, Trial, Tuned, numbers_of

Side = Literal["low", "high"]


def at_edge(trials: Sequence[Trial], key: str, low: float, high: float, goal: Goal) -> Side | None:
    """Return the side on which an arm's best value is the outermost one; None if it is inside.

    It is inside if trials on both sides of it were worse. A run that diverged is worse than any. A
    trial of another end, such as out of memory, says nothing about its value. Zero is no edge of a
    range that begins there: nothing lies below.

    Args:
        trials: The trials of one arm.
        key: A key whose values are numbers.
        low: Where the range begins.
        high: Where it ends. If nothing was tried on either side, the nearer end is named.
        goal: Whether a lower score is better.
    """
    values = numbers_of(trials, key)
    first = best([one for _, one in values], goal)
    if first is None or first.score is None:
        return None
    here, score = float(first.values[key]), first.score
    worse = [value for value, one in values if _is_worse(one, score, goal)]
    free: list[Side] = []
    if not any(value < here for value in worse) and not here == low == 0:
        free.append("low")
    if not any(value > here for value in worse):
        free.append("high")
    if len(free) == 2:
        return "low" if here - low < high - here else "high"
    return free[0] if free else None


def edges(tuned: Tuned) -> dict[str, dict[str, Side]]:
    """Return by arm the keys whose best value is at an edge, with the side; arms without are left.

    Args:
        tuned: A tuned sweep whose trials have ended.
    """
    found = {}
    for arm in tuned.searched:
        own = edges_of(tuned.of(arm.label), tuned.bounds, tuned.goal)
        if own:
            found[arm.label] = own
    return found


def edges_of(
    trials: Sequence[Trial], bounds: Mapping[str, tuple[float, float]], goal: Goal
) -> dict[str, Side]:
    """Return the keys whose best value is at an edge, of the trials of one arm."""
    sides = {key: at_edge(trials, key, *ends, goal) for key, ends in bounds.items()}
    return {key: side for key, side in sides.items() if side is not None}


def _is_worse(trial: Trial, score: float, goal: Goal) -> bool:
    if trial.diverged:
        return True
    return trial.scored and trial.score is not None and is_better(score, trial.score, goal)
