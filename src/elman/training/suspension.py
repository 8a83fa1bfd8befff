"""Finds out how long a run was stopped, by Ctrl-Z or a scheduler, so that it does not count.

Nothing hears SIGSTOP, and the clock goes on. SIGCONT is heard when the run goes on: what the step
took longer than the steps before is then the time of the stop.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from elman.base.signals import Interruption
from elman.evaluation.metrics import TrainingClock

LEAST_SECONDS = 1.0
"""A step that took so much longer was stopped; SIGCONT alone, as before SIGTERM, is no stop."""
_STEPS = 16


class Suspension:
    """Takes the time of stops from the training clock.

    Args:
        clock: The clock.
        usual: Seconds of a step, before there are any.
    """

    def __init__(self, clock: TrainingClock, usual: float) -> None:
        self._clock, self._usual = clock, usual
        self._recent: deque[float] = deque(maxlen=_STEPS)
        self._at = clock.seconds()

    def begins(self) -> None:
        """Note that a step begins."""
        now = self._clock.seconds()
        self._recent.append(now - self._at)
        self._at = now

    def forgiven(self, interruption: Interruption) -> float:
        """Return for how long the run was stopped since it was last asked; the clock forgets it."""
        if not interruption.continued:
            return 0.0
        interruption.continued = False
        steps = list(self._recent)[1:]  # before the first there was no step
        surplus = self._clock.seconds() - self._at - (median(steps) if steps else self._usual)
        if surplus < LEAST_SECONDS:
            return 0.0
        self._clock.forget(surplus)
        return surplus
