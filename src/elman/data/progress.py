"""Shows the progress of packing."""

from __future__ import annotations

import time

from elman.base.live_line import LiveLine
from elman.base.units import duration, size_text


class PackingProgress(LiveLine):
    """Shows the progress on the error stream.

    Args:
        total: Bytes to read in all.
    """

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total = total
        # The time when reading began, and the bytes that were read before.
        self._start: tuple[float, int] | None = None

    def packing(self, read: int, written: int) -> None:
        """Show how many bytes were read and written."""
        if self._start is None:
            self._start = (time.monotonic(), read)
        since, before = self._start
        self.show(self._line(read, written, before, time.monotonic() - since))

    def _line(self, read: int, written: int, before: int, seconds: float) -> str:
        rate = (read - before) / max(seconds, 1e-3)
        left = f", about {duration((self._total - read) / rate)} left" if rate > 0 else ""
        return (
            f"packing: {min(1.0, read / max(1, self._total)):.0%} of {size_text(self._total)} "
            f"read, {size_text(written)} of text, {size_text(rate)}/s{left}"
        )
