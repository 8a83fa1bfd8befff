"""Where what is printed goes: one rule for every mode.

Standard output gets what a command exists to give: tables, reports, generated text, and the lines
and the summary of a run or a sweep. Standard error gets progress and errors. A live display needs a
terminal: that of standard output or, if standard output is a file, that of standard error.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from rich.console import Console, RenderableType
from rich.live import Live

from elman.base import output

_UNBOUND = 100_000


def table_console() -> Console:
    """Return a console on standard output: as wide as the terminal, and unbound elsewhere."""
    console = Console()
    return console if console.is_terminal and not output.is_wide() else Console(width=_UNBOUND)


class LiveArea:
    """What a terminal shows below the lines, drawn anew at each call; nothing without a terminal.

    It is drawn only when something changes. A drawing thread would compete for the interpreter with
    a small model's many short operations.

    Args:
        lines: Where the lines are printed.
    """

    def __init__(self, lines: Console) -> None:
        self._lines = lines
        self._live: Live | None = None

    @property
    def shown(self) -> bool:
        """Whether there is a place for it, between :meth:`start` and :meth:`stop`."""
        return self._live is not None

    @property
    def width(self) -> int:
        """Columns of its terminal; 0 without one."""
        return self._live.console.width if self._live is not None else 0

    def start(self) -> None:
        """Take the place below the lines, if there is one."""
        if (console := _live_console(self._lines)) is not None:
            own = console is self._lines  # printing must not end up on the other stream
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=own
            )
            self._live.start()

    def draw(self, shown: RenderableType) -> None:
        """Show this, if there is a place for it."""
        if self._live is not None:
            self._live.update(shown, refresh=True)

    def stop(self) -> None:
        """Remove what is shown."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _live_console(lines: Console) -> Console | None:
    """Return where a live area is drawn beside lines; None if there is no place for it."""
    if lines.is_terminal:
        return lines
    errors = Console(stderr=True)
    return errors if lines.file is sys.stdout and _is_file(1) and errors.is_terminal else None


def _is_file(descriptor: int) -> bool:
    """Whether it is a file: what a pipe is given (``| tee log``) may come to the same terminal."""
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    return False


def say(console: Console, line: str) -> None:
    """Print one line unchanged: without colors, markup or line breaks."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
