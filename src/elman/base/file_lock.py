"""Locks on files, and what stands for them where the file system has none. Imports no torch.

Some file systems have no locks: NFS without its lock service, Lustre without ``-o flock``, some of
FUSE. There a file that one process alone can make names the holder. Unlike a lock it stays when
its holder is killed. On the same machine that is noticed; on another one nobody can tell.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

_ATTEMPTS = 20


class NoLocksError(OSError):
    """The file system gives no locks."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file; return False at once if another process has it.

    Args:
        descriptor: The open file.
        shared: Hold it together with others who share it.

    Raises:
        NoLocksError: its file system cannot lock.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise NoLocksError(error.errno, error.strerror) from None
    return True


def wait_for_lock(descriptor: int) -> None:
    """Lock an open file as soon as no other process has it.

    Raises:
        NoLocksError: its file system cannot lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise NoLocksError(error.errno, error.strerror) from None


@cache
def say_no_locks(place: Path, reason: str, consequence: str) -> None:
    """Print once per process that a place has no locks, why, and what follows."""
    line = f"elman: {place}: its file system has no locks ({reason}); {consequence}"
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Process:
    """A process, so that another one with its number is not taken for it."""

    pid: int
    host: str
    started: str

    @property
    def gone(self) -> bool:
        """Whether it is certain that it has ended."""
        return self.host == _host() and _started(self.pid) != self.started


class HolderFile:
    """A file that names its holder, where there are no locks.

    Args:
        path: The file; it exists while somebody holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self) -> str | None:
        """Make the file, or return who holds it, in words.

        Raises:
            OSError: it cannot be written.
        """
        for _ in range(_ATTEMPTS):
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                if (who := self.holder()) is not None:
                    return who
                continue
            with os.fdopen(descriptor, "w") as stream:
                json.dump(asdict(_Process(os.getpid(), _host(), _started(os.getpid()))), stream)
            return None
        return "another process"

    def drop(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self.path.unlink()

    def holder(self) -> str | None:
        """Return who holds it, in words, or None; what an ended process left is removed."""
        found = self._read()
        if found is None:
            return "another process" if self.path.exists() else None
        if not found.gone:
            return f"pid {found.pid} of {found.host.partition('/')[0]}"
        if self._read() == found:
            self.drop()
        return None

    @property
    def elsewhere(self) -> bool:
        """Whether its holder is a process of another machine, of which nobody knows if it lives."""
        found = self._read()
        return found is not None and found.host != _host()

    @property
    def own(self) -> bool:
        """Whether this process made it."""
        found = self._read()
        return found is not None and (found.pid, found.host) == (os.getpid(), _host())

    def _read(self) -> _Process | None:
        try:
            return _Process(**json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):  # it is just being written, or gone
            return None


@cache
def _host() -> str:
    """Return this machine's name and what is new at each start of it."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}"


def _started(pid: int) -> str:
    """Return when a process started, or an empty text if there is none; a zombie has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        fields = after_name.split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "there"
