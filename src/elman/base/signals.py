"""Signals that end a command: at once before it trains, after the step and a save while it does.

SIGHUP comes when a terminal closes or a connection drops. A command that was started to ignore it
(``nohup``) goes on ignoring it. Imports no torch.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)
received: set[int] = set()
"""Signals that have asked this process to stop: a launcher tells a preemption by them."""


class Stopped(BaseException):
    """A signal came while something was computed that counts only when it is whole."""


class _When(Enum):
    """When a signal takes effect."""

    NOW = auto()
    AFTER_THE_STEP = auto()
    LATER = auto()


class Interruption:
    """Whether, and by which signal, the run was asked to stop.

    A signal is noted, for a loop that looks; after :meth:`release` it raises KeyboardInterrupt,
    until :meth:`begin`; after :meth:`hold` it stays without effect.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._when, self._stoppable = _When.AFTER_THE_STEP, False

    def __bool__(self) -> bool:
        return self.name is not None

    def begin(self) -> None:
        """From now on there is something to save: let the step finish."""
        self._when = _When.AFTER_THE_STEP

    def hold(self) -> None:
        """Let nothing interrupt what follows: the result is written."""
        self._when = _When.LATER

    def release(self) -> None:
        """What follows may be left at any point: nothing is begun yet, or all is written."""
        self._when = _When.NOW

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """End what is computed in this context when a signal comes, or has come, by Stopped.

        It must be safe to leave at any point, and nothing of it may be used afterwards.
        """
        self._stoppable = True
        try:
            if self:
                raise Stopped
            yield
        finally:
            self._stoppable = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; a second Ctrl-C gives up waiting for the step."""
        received.add(number)
        again, self.name = bool(self), signal.Signals(number).name
        if self._when is _When.NOW or (
            self._when is _When.AFTER_THE_STEP and again and number == signal.SIGINT
        ):
            self._when, self._stoppable = _When.LATER, False  # what cleans up is not interrupted
            raise KeyboardInterrupt
        if self._stoppable:
            self._stoppable = False
            raise Stopped


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Catch the signals inside this context, and give them back afterwards."""
    interruption = Interruption()
    with _caught(_SIGNALS, interruption.request):
        yield interruption


@contextmanager
def ending() -> Iterator[dict[int, Any]]:
    """Let every signal end what runs inside this context as Ctrl-C does, by KeyboardInterrupt.

    Yields what each signal did before.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.add(number)
        raise KeyboardInterrupt

    with _caught(_SIGNALS[1:], interrupt) as before:
        yield before


@contextmanager
def _caught(numbers: tuple[signal.Signals, ...], handler: Any) -> Iterator[dict[int, Any]]:
    """Handle signals inside this context, if this is the main thread: no other one can."""
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if not ignored(number):
                    before[number] = signal.signal(number, handler)
        yield before
    finally:
        for caught, earlier in before.items():
            # None: it was not set from Python, and cannot be set again.
            with contextlib.suppress(TypeError):
                signal.signal(caught, earlier)


def ignored(number: int) -> bool:
    """Whether this process was started to ignore a closed terminal, and the signal says that."""
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
