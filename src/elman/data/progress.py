"""Shows the progress of packing: a live line on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

_LIVE_SECONDS = 0.25
_FIRST_SECONDS = 5.0
_SPARSE_SECONDS = 60.0


class PackingProgress:
    """Shows the progress on the error stream.

    Args:
        total: Bytes to read in all.
    """

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._total = total
        self._began = self._shown = time.monotonic()
        # The time when reading began, and the bytes that were read before.
        self._start: tuple[float, int] | None = None
        self._pause = _FIRST_SECONDS

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._pause = _LIVE_SECONDS
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
        if now - self._shown < self._pause:
            return
        self._shown = now
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        else:
            self._pause = min(2 * self._pause, _SPARSE_SECONDS)
            self.say(line)

    def packing(self, read: int, written: int) -> None:
        """Show how many bytes were read and written."""
        if self._start is None:
            self._start = (time.monotonic(), read)
        since, before = self._start
        self.show(self._line(read, written, before, time.monotonic() - since))

    def _line(self, read: int, written: int, before: int, seconds: float) -> str:
        rate = (read - before) / max(seconds, 1e-3)
        left = f", about {_minutes((self._total - read) / rate)} left" if rate > 0 else ""
        return (
            f"packing: {min(1.0, read / max(1, self._total)):.0%} of {size_text(self._total)} "
            f"read, {size_text(written)} of text, {rate / 1e6:.0f} MB/s{left}"
        )


def size_text(n_bytes: float) -> str:
    """Return a number of bytes as ``12.3 MB`` or ``4.5 GB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes / 1e3:.1f} kB"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
