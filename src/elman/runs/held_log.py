"""The log of a resumed run: its file stays unchanged until nothing can refuse the run."""

from __future__ import annotations

import logging


class HeldFileHandler(logging.FileHandler):
    """Holds log records until :func:`release`, or until an error has to be kept for later.

    What a refused resume logs goes to the terminal only.
    """

    def __init__(self, filename: str) -> None:
        super().__init__(filename, encoding="utf-8", delay=True)
        self._held: list[logging.LogRecord] | None = []

    def emit(self, record: logging.LogRecord) -> None:
        """Hold a record, or write it."""
        if record.levelno >= logging.ERROR:
            self.write_out()
        if self._held is None:
            super().emit(record)
        else:
            self._held.append(record)

    def write_out(self) -> None:
        """Write the held records, and from now on every record at once."""
        held, self._held = self._held or [], None
        for record in held:
            super().emit(record)


def release() -> None:
    """Let the log of this process into its file."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, HeldFileHandler):
            handler.write_out()
