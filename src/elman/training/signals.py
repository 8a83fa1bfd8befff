"""Polite interruption: SIGINT, SIGTERM and SIGUSR2 let the step finish and the weights be saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
received: set[int] = set()
"""Signals that have asked this process to stop: a launcher tells a preemption by them."""


class Interruption:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.name: str | None = None

    def __bool__(self) -> bool:
        return self.name is not None

    def request(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; a second Ctrl-C gives up waiting for the step."""
        received.add(number)
        if self.name is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Catch the three signals inside this context, and give them back afterwards."""
    interruption = Interruption()
    before = {number: signal.signal(number, interruption.request) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
