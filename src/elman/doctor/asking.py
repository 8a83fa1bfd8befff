"""Asks the questions of :mod:`elman.doctor.questions`, all at once, each with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import IO, Any

from elman.doctor.questions import MARK

TIME_LIMIT = 120.0
"""Seconds that one question may take: importing torch from a cold network disk takes a minute."""
_PAUSE = 0.05
_LONGEST = 300


@dataclass(frozen=True)
class Answered:
    """How one question ended.

    Args:
        value: The answer; empty if there is none.
        problem: Why there is no answer: the last line of an exception, a signal or the time limit.
        seconds: How long it took, with the start of its process.
    """

    value: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    seconds: float = field(default=0.0, compare=False)


def ask(
    questions: Iterable[str],
    show: Callable[[list[str]], None] = lambda waiting: None,
    limit: float | None = None,
) -> Iterator[tuple[str, Answered]]:
    """Ask all questions side by side, and yield how each ended as soon as it has.

    Args:
        questions: Names in :data:`elman.doctor.questions.QUESTIONS`.
        show: Called with the names of the open questions whenever one is answered.
        limit: Seconds for each question; None means :data:`TIME_LIMIT`.
    """
    began = time.monotonic()
    deadline = began + (TIME_LIMIT if limit is None else limit)
    with ExitStack() as stack:
        waiting = {name: stack.enter_context(_Asked(name)) for name in questions}
        while waiting:
            show(list(waiting))
            ended = _wait(waiting, deadline)
            seconds = time.monotonic() - began
            for name in ended:
                yield name, replace(waiting.pop(name).answer(), seconds=seconds)


class _Asked:
    """A running question, in its own session so that it can be killed with its children."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> _Asked:
        self._said: IO[str] = tempfile.TemporaryFile("w+", errors="replace")
        self._complained: IO[str] = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            # -P: a folder named torch in the user's current folder is not the package.
            [sys.executable, "-P", "-m", "elman.doctor.questions", self._name],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._complained,
            start_new_session=True,
        )
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()
        self._said.close()
        self._complained.close()

    def answer(self) -> Answered:
        """Return the answer of a finished process; kill an unfinished one and report the limit."""
        late = self.process.poll() is None
        self._end()
        for line in _lines(self._said):
            if line.startswith(MARK):
                return Answered(json.loads(line.removeprefix(MARK)))
        if late:
            return Answered(problem="no answer within the time limit")
        return Answered(problem=self._how_it_ended())

    def _how_it_ended(self) -> str:
        status = self.process.returncode
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        complaints = [line.strip() for line in _lines(self._complained) if line.strip()]
        return (complaints or [f"exit status {status}"])[-1][:_LONGEST]

    def _end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _wait(waiting: Mapping[str, _Asked], deadline: float) -> list[str]:
    """Return the names of the finished questions, or all names after the deadline."""
    while time.monotonic() < deadline:
        ended = [name for name, asked in waiting.items() if asked.process.poll() is not None]
        if ended:
            return ended
        time.sleep(_PAUSE)
    return list(waiting)


def _lines(stream: IO[str]) -> list[str]:
    stream.seek(0)
    return stream.read().splitlines()
