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

from rich.console import Console

from elman.base import output

_UNBOUND = 100_000


def table_console() -> Console:
    """Return a console on standard output: as wide as the terminal, and unbound elsewhere."""
    console = Console()
    return console if console.is_terminal and not output.is_wide() else Console(width=_UNBOUND)


def live_console(lines: Console) -> Console | None:
    """Return where a live display is drawn beside lines; None if there is no place for it.

    Args:
        lines: Where the lines are printed.
    """
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
