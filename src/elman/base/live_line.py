"""Shows what goes on: a line that changes on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

QUIET_SECONDS = 2.0
"""What is shorter shows no progress."""
_LIVE_SECONDS = 0.25
_FIRST_SECONDS = 5.0
_SPARSE_SECONDS = 60.0


class LiveLine:
    """A line on the error stream.

    Args:
        quiet: Seconds at the start during which nothing is shown.
    """

    def __init__(self, quiet: float = 0.0) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._began = time.monotonic()
        self._next = self._began + max(quiet, _FIRST_SECONDS)
        self._pause = _FIRST_SECONDS
        if self._console.is_terminal:
            self._next = self._began + max(quiet, _LIVE_SECONDS)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, line: str) -> None:
        """Print one line, above the live one."""
        text = f"elman: {line}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, line: str) -> None:
        """Show what is going on, if the last update is old enough."""
        now = time.monotonic()
        if now < self._next:
            return
        if self._live is not None:
            self._next = now + _LIVE_SECONDS
            self._live.update(Text(line), refresh=True)
            return
        self._pause = min(2 * self._pause, _SPARSE_SECONDS)
        self._next = now + self._pause
        self.say(line)
