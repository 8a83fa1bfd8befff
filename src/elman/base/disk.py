"""Writes a run's files on a disk that may be full: appends wait, results use reserved space.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TypeGuard

from elman.base.errors import UserError
from elman.base.output import note

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TROUBLE = _FULL | {errno.EROFS, errno.EIO, errno.ENODEV, errno.ESTALE}
HELD_BYTES = 1 << 24
"""Most bytes that wait in memory for each file of a run."""
_PART_BYTES = 1 << 20


def is_disk_trouble(error: BaseException) -> TypeGuard[OSError]:
    """Whether the disk is at fault: full, over quota, read-only, broken or gone."""
    return isinstance(error, OSError) and error.errno in _TROUBLE


def no_room(error: OSError, place: Path | str) -> UserError:
    """Return the error for a run that could not start because of its disk."""
    where = error.filename or place
    room = "free some space there, or " if error.errno in _FULL else ""
    return UserError(
        f"{where}: cannot be written ({error.strerror}); {room}name a folder "
        "on another disk with hydra.run.dir=<folder>"
    )


def say_unwritten(path: Path, error: OSError) -> None:
    """Say that a result exists only in the terminal."""
    note(f"{path}: cannot be written ({error.strerror}); only the table above has it")


class Appender:
    """Appends to a file; what finds no space waits in memory and is written later, in order.

    One line says when the first file has to wait, and one when the last wait is over.

    Args:
        path: The file; it is made if it is not there.

    Raises:
        OSError: it cannot be opened.
    """

    _waiting: set[Appender] = set()  # noqa: RUF012 (shared by all files of the process)

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        self._held = bytearray()
        self.dropped = 0

    def append(self, content: bytes) -> None:
        """Append ``content``, now or later; it is dropped if more than 16 MiB wait already."""
        if self._held and len(self._held) + len(content) > HELD_BYTES:
            self.dropped += len(content)
            content = b""
        self._held += content
        self._write()

    def close(self) -> int:
        """Write what waits if possible, close the file, and return the number of lost bytes."""
        self._write()
        Appender._waiting.discard(self)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        return len(self._held) + self.dropped

    def _write(self) -> None:
        try:
            while self._held:
                written = os.write(self._descriptor, bytes(self._held[:_PART_BYTES]))
                del self._held[:written]
        except OSError as error:
            self._waits(error)
        else:
            self._goes_on()

    def _waits(self, error: OSError) -> None:
        if not Appender._waiting:
            note(
                f"{self.path}: {error.strerror}; metrics and log lines wait in memory until there "
                "is room, and the run goes on",
                who="warning: ",
            )
        Appender._waiting.add(self)

    def _goes_on(self) -> None:
        if self not in Appender._waiting:
            return
        Appender._waiting.discard(self)
        if not Appender._waiting:
            note(
                "can be written again; metrics and log lines are on the disk",
                who=f"{self.path.parent}: ",
            )
