"""Shows what goes on: a line that changes on a terminal, occasional lines elsewhere.

Such lines depend on how fast the machine is. ``ELMAN_PROGRESS=off`` in the environment silences
them, so that a command prints the same on every machine.
"""

from __future__ import annotations

import os
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from elman.base.closing import Closing
from elman.base.consoles import LiveArea, say
from elman.base.output import note
from elman.base.units import duration

QUIET_SECONDS = 2.0
"""What is shorter shows no progress."""
PLAIN_SECONDS = 5.0
"""Fewest seconds between two lines of progress where there is no terminal."""
PROGRESS_VARIABLE = "ELMAN_PROGRESS"
_LIVE_SECONDS = 0.25
_FIRST_SECONDS = 5.0
_SPARSE_SECONDS = 60.0


def is_silenced() -> bool:
    """Return whether the environment says that no progress is shown."""
    return os.environ.get(PROGRESS_VARIABLE) == "off"


class LiveLine(Closing):
    """A line on the error stream.

    Args:
        quiet: Seconds at the start during which nothing is shown.
    """

    def __init__(self, quiet: float = 0.0) -> None:
        self._console = Console(stderr=True)
        self._area = LiveArea(self._console)
        self._began = time.monotonic()
        self._next = self._began + max(quiet, _FIRST_SECONDS)
        self._pause = _FIRST_SECONDS
        if self._console.is_terminal:
            self._next = self._began + max(quiet, _LIVE_SECONDS)

    def open(self) -> None:
        """Take a line of the terminal, if there is one."""
        self._area.start()

    def close(self) -> None:
        """Remove the line."""
        self._area.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, line: str) -> None:
        """Print one line, above the live one."""
        say(self._console, f"elman: {line}")

    def show(self, line: str) -> None:
        """Show what is going on, if the last update is old enough."""
        now = time.monotonic()
        if now < self._next or is_silenced():
            return
        if self._area.shown:
            self._next = now + _LIVE_SECONDS
            self._area.draw(Text(line))
            return
        self._pause = min(2 * self._pause, _SPARSE_SECONDS)
        self._next = now + self._pause
        self.say(line)


class ProgressBar(Closing):
    """A bar on a terminal, lines on the error stream elsewhere; both say how much time is left.

    Args:
        stage: What goes on.
        console: Where the bar is drawn.
        quiet: Seconds at the start of a stage without a line.
    """

    def __init__(self, stage: str, console: Console, quiet: float = 0.0) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._lines = not console.is_terminal
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=self._lines or is_silenced(),
        )
        self._task = self._bar.add_task(stage, total=None)
        self._stage, self._quiet = stage, quiet
        self._began = time.monotonic()
        self._next = self._began + quiet

    def open(self) -> None:
        """Draw the bar, if there is a terminal."""
        self._bar.start()

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    def begin(self, stage: str) -> None:
        """Say what goes on from now on."""
        self._stage, self._began = stage, time.monotonic()
        self._next = self._began + self._quiet
        self._bar.reset(self._task, total=None, description=stage)
        if self._lines:
            note(f"{stage} ...", who="")

    def show(self, done: int, total: int) -> None:
        """Show how far it is."""
        self._bar.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if not self._lines or done >= total or now < self._next or is_silenced():
            return
        self._next = now + PLAIN_SECONDS
        left = (now - self._began) * (total - done) / done if done else 0.0
        words = f", about {duration(left)} left" if done else ""
        note(f"{self._stage}: {done:,} of {total:,}{words} ...", who="")
