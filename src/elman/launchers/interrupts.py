"""Catches and counts signals to a launcher, and passes them on to its jobs."""

from __future__ import annotations

import signal
import time
from types import FrameType

from elman.base.closing import Closing
from elman.base.signals import ENDING, ignored, received

# A job saves on each of them. The signal that requeues a single job ends a sweep: jobs could not be
# requeued without their launcher.
_FORWARDED = {
    number: signal.SIGINT if number == signal.SIGINT else signal.SIGTERM for number in ENDING
}


class Interrupts(Closing):
    """Catches the signals inside its context, and restores their handlers afterwards.

    Attributes:
        count: How many came.
    """

    def __init__(self) -> None:
        self.count = 0
        self._first = 0.0
        self._new: list[signal.Signals] = []

    def take(self) -> list[signal.Signals]:
        """Return what to send to the jobs: the signals that came since the last call."""
        new, self._new = self._new, []
        return new

    def seconds(self) -> float:
        """Return the time since the first one, 0 before it."""
        return time.monotonic() - self._first if self.count else 0.0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGXCPU and self.count:
            return  # the system repeats it each second, so this is nobody's second order
        received.add(number)
        self._first = self._first or time.monotonic()
        self.count += 1
        self._new.append(_FORWARDED[signal.Signals(number)])

    def open(self) -> None:
        """Catch the signals from now on."""
        heard = [number for number in _FORWARDED if not ignored(number)]
        self._before = {number: signal.signal(number, self._receive) for number in heard}

    def close(self) -> None:
        """Restore their handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
