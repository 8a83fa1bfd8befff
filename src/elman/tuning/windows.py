"""The window of a setting: the values whose score is nearly as good as the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.tuning.choice import best
from elman.tuning.trials import Goal, Trial, numbers_of


@dataclass(frozen=True)
class Window:
    """The values of a key that are nearly as good as the best.

    Args:
        low: The smallest of them.
        high: The largest of them.
        best: The best one.
        points: All of them that were tried, ascending.
        open_low: Whether the smallest value that was tried is one of them, so that the window may
            reach farther down.
        open_high: The same of the largest one.
    """

    low: float
    high: float
    best: float
    points: tuple[float, ...]
    open_low: bool
    open_high: bool

    @property
    def factor(self) -> float | None:
        """The largest value over the smallest one; None if that has no meaning."""
        return self.high / self.low if self.low > 0 else None


def window(trials: Sequence[Trial], key: str, share: float, goal: Goal) -> Window | None:
    """Return the window of a key; None if no trial has a score.

    Args:
        trials: The trials of one arm.
        key: A key whose values are numbers.
        share: How far from the best a score may be, as a share of it.
        goal: Whether a lower score is better.

    With one key, a window ends at the first value outside it, also one whose run diverged. With
    several keys, a score depends on the others too, so every value inside counts.
    """
    tried = [(value, one) for value, one in numbers_of(trials, key) if one.scored or one.diverged]
    first = best([one for _, one in tried], goal)
    if first is None or first.score is None:
        return None
    here = float(first.values[key])
    limit = first.score + (1 if goal == "minimize" else -1) * share * abs(first.score)
    inside = {value for value, one in tried if _is_inside(one, limit, goal)}
    outside = {value for value, _ in tried} - inside
    if len(first.values) == 1:
        below = max((value for value in outside if value < here), default=float("-inf"))
        above = min((value for value in outside if value > here), default=float("inf"))
        inside = {value for value in inside if below < value < above}
    points = tuple(sorted(inside))
    return Window(
        low=points[0],
        high=points[-1],
        best=here,
        points=points,
        open_low=points[0] == tried[0][0],
        open_high=points[-1] == tried[-1][0],
    )


def _is_inside(trial: Trial, limit: float, goal: Goal) -> bool:
    if not trial.scored or trial.score is None:
        return False
    return trial.score <= limit if goal == "minimize" else trial.score >= limit
