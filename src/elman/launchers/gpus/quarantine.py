"""Rests a GPU on which jobs keep failing at once; otherwise it would use up the whole queue."""

from __future__ import annotations

import time
from collections.abc import Callable

from elman.base.exit_status import ExitStatus
from elman.launchers.gpus.slot import Slot

AT_ONCE_SECONDS = 60.0
"""Seconds: a job that crashes or is killed within this time of its start has failed at once."""
FAILURES = 3
"""After this many in a row on one GPU, while another GPU works, the GPU rests."""
REST_SECONDS = 60.0
"""Seconds of the first rest. Each further failure at once doubles it; a lasting job resets it."""


class Quarantine:
    """Counts failures at once per GPU, and decides which slots rest.

    If jobs fail everywhere, the jobs are at fault and no slot rests. CPU workers never rest.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_a_row: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def started(self, slot: Slot) -> None:
        """Note that a slot got a job."""
        for gpu in slot.gpus():
            self._in_a_row.setdefault(gpu, 0)

    def ended(self, slot: Slot, status: int, seconds: float) -> None:
        """Note how a job ended, and after how long; if its slot rests now, tell the slot why.

        A failure of a job on several GPUs counts for each of them: nobody knows which it was.
        """
        gpus = slot.gpus()
        failed = status == ExitStatus.FAILED or status < 0
        if not failed or seconds > AT_ONCE_SECONDS:
            self._in_a_row |= dict.fromkeys(gpus, 0)
            return
        for gpu in gpus:
            self._in_a_row[gpu] += 1
        number = min((self._in_a_row[gpu] for gpu in gpus), default=0)
        others = [count for name, count in self._in_a_row.items() if name not in gpus]
        if number < FAILURES or 0 not in others:
            return
        rest = REST_SECONDS * 2 ** (number - FAILURES)
        self._until |= dict.fromkeys(gpus, self._clock() + rest)
        slot.waiting = f"quarantined for {rest:.0f} s: {number} jobs in a row failed there at once"

    def resting(self, slot: Slot) -> bool:
        """Whether a slot rests now, because one of its GPUs does."""
        return any(self._clock() < self._until.get(gpu, 0.0) for gpu in slot.gpus())
