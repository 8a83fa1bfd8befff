"""The handler of ``train.log``: on a full disk it waits; it never ends a run or floods it."""

from __future__ import annotations

import logging
from pathlib import Path

from elman.base.disk import Appender


class LogFile(logging.Handler):
    """Appends log records to a file, as :class:`elman.base.disk.Appender` does.

    Args:
        filename: The file.
    """

    def __init__(self, filename: str) -> None:
        super().__init__()
        self._file: Appender | None = Appender(Path(filename))

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record."""
        try:
            text = self.format(record)
        except Exception:  # as every handler does: a bad record is the caller's fault
            self.handleError(record)
            return
        if self._file is not None:
            self._file.append(f"{text}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        """Write the waiting records, if possible, and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()
