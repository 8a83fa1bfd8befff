"""Handles signals that end a command: at once before training, else after the step and a save.

SIGHUP comes when a terminal closes or a connection drops. Schedulers announce their limits by
SIGTERM, SIGUSR1, SIGUSR2 or SIGXCPU, as they are told to. Ctrl-\\ sends SIGQUIT. What a command was
started to ignore, as SIGHUP under ``nohup``, it keeps ignoring. Imports no torch.
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

ENDING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
"""Signals on which a run saves and ends."""
# From a keyboard, and always for this process. Nobody else's order can be ignored in advance.
_HEARD = (signal.SIGINT, signal.SIGTERM)
# A second one of these does not wait for the step.
_IMPATIENT = (signal.SIGINT, signal.SIGQUIT)
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
    """Whether the run was asked to stop, and by which signal; whether it was stopped and goes on.

    At first, and after :meth:`begin`, a signal is only noted, and the training loop looks for it.
    After :meth:`release` it raises KeyboardInterrupt. After :meth:`hold` it has no effect.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.continued = False
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

    def goes_on(self, number: int, frame: FrameType | None) -> None:
        """Note SIGCONT, which comes after a stop (Ctrl-Z, a scheduler that suspends jobs)."""
        self.continued = True

    def take_over(self, number: int) -> None:
        """Note a signal that another process of the same run got; it may still come here, too."""
        if not self:
            self.name, self._expected = signal.Signals(number).name, True

    def request(self, number: int, frame: FrameType | None) -> None:
        """Note the signal; a second Ctrl-C or Ctrl-\\ gives up waiting for the step."""
        received.add(number)
        if self._expected:
            self._expected = False
            return
        again, self.name = bool(self), signal.Signals(number).name
        if self._when is _When.NOW or (
            self._when is _When.AFTER_THE_STEP and again and number in _IMPATIENT
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
    with _caught(ENDING, interruption.request), _caught((signal.SIGCONT,), interruption.goes_on):
        yield interruption


@contextmanager
def ending() -> Iterator[dict[int, Any]]:
    """Let every signal end what runs inside this context as Ctrl-C does, by KeyboardInterrupt.

    Only the first one does; a scheduler may send several, and a later one would cut the clean-up
    short. Yields the handler that each signal had before.
    """
    told: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.add(number)
        told.append(number)
        if len(told) == 1:
            raise KeyboardInterrupt

    with _caught(ENDING[1:], interrupt) as before:
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
    """Whether this process was started to ignore the signal, and keeps ignoring it."""
    return number not in _HEARD and signal.getsignal(number) == signal.SIG_IGN


def leave_to_the_command() -> None:
    """Ignore, in a helper process, what a scheduler sends to every process of a job.

    The helper ends with the command that it serves, which may still need it to save and end.
    """
    for number in set(ENDING) - set(_HEARD):
        signal.signal(number, signal.SIG_IGN)


def last_received() -> str | None:
    """Return the name of a signal that asked this process to stop; None after Ctrl-C alone."""
    others = received - {signal.SIGINT}
    return signal.Signals(max(others)).name if others else None
