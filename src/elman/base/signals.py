"""Handles signals that end a command: at once before training, else after the step and a save.

SIGHUP comes when a terminal closes or a connection drops. A command that was started with
``nohup`` keeps ignoring it. Imports no torch.
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
"""Signals that asked this process to stop; a launcher recognizes a preemption by them."""


class Stopped(BaseException):
    """A signal came during a computation whose partial result is of no use."""


class _When(Enum):
    """When a signal takes effect."""

    NOW = auto()
    AFTER_THE_STEP = auto()
    LATER = auto()


class Interruption:
    """Whether the run was asked to stop, and by which signal.

    At first, and after :meth:`begin`, a signal is only noted, and the training loop looks for it.
    After :meth:`release` it raises KeyboardInterrupt. After :meth:`hold` it has no effect.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._when, self._stoppable = _When.AFTER_THE_STEP, False
        self._expected = False

    def __bool__(self) -> bool:
        return self.name is not None

    def begin(self) -> None:
        """From now on there is something to save: let the step finish."""
        self._when = _When.AFTER_THE_STEP

    def hold(self) -> None:
        """Let nothing interrupt what follows: the result is written."""
        self._when = _When.LATER

    def release(self) -> None:
        """What follows may stop at any point: nothing has begun yet, or all is written."""
        self._when = _When.NOW

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Raise Stopped inside this context when a signal comes or has already come.

        The code inside must be safe to leave at any point, and nobody may use its partial results.
        """
        self._stoppable = True
        try:
            if self:
                raise Stopped
            yield
        finally:
            self._stoppable = False

    def take_over(self, number: int) -> None:
        """Note a signal that another process of the same run got; it may still come here, too."""
        if not self:
            self.name, self._expected = signal.Signals(number).name, True

    def request(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; a second Ctrl-C gives up waiting for the step."""
        received.add(number)
        if self._expected:
            self._expected = False
            return
        again, self.name = bool(self), signal.Signals(number).name
        if self._when is _When.NOW or (
            self._when is _When.AFTER_THE_STEP and again and number == signal.SIGINT
        ):
            self._when, self._stoppable = _When.LATER, False  # do not interrupt the cleanup
            raise KeyboardInterrupt
        if self._stoppable:
            self._stoppable = False
            raise Stopped


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Catch the signals inside this context, and restore their handlers afterwards."""
    interruption = Interruption()
    with _caught(_SIGNALS, interruption.request):
        yield interruption


@contextmanager
def ending() -> Iterator[dict[int, Any]]:
    """Let every signal end what runs inside this context as Ctrl-C does, by KeyboardInterrupt.

    Yields the handler that each signal had before.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.add(number)
        raise KeyboardInterrupt

    with _caught(_SIGNALS[1:], interrupt) as before:
        yield before


@contextmanager
def _caught(numbers: tuple[signal.Signals, ...], handler: Any) -> Iterator[dict[int, Any]]:
    """Handle signals inside this context if this is the main thread; only that one can."""
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if not ignored(number):
                    before[number] = signal.signal(number, handler)
        yield before
    finally:
        for caught, earlier in before.items():
            # None: the handler was not set from Python, so it cannot be restored.
            with contextlib.suppress(TypeError):
                signal.signal(caught, earlier)


def ignored(number: int) -> bool:
    """Whether the signal is SIGHUP and this process was started to ignore it."""
    return number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
