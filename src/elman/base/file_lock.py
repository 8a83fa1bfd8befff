"""Locks on files, and what stands for them where the file system has none. Imports no torch.

Some file systems have no locks: NFS without its lock service, Lustre without ``-o flock``, some of
FUSE. There a file that one process alone can make names the holder. Unlike a lock it stays when
its holder is killed. On the same machine that is noticed; on another one nobody can tell.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from elman.base.output import note

_ATTEMPTS = 20


class NoLocksError(OSError):
    """The file system gives no locks."""


class FileLock:
    """A lock on a file; the system frees it when all its holders have died, however they die.

    The file is left there. Its content tells people, and other processes, who took it last.

    Args:
        path: The file; it is made if it is not there.
        mode: Its permissions, less the umask.
        stand_in: Where the file system has no locks, the file that stands for this one.
        lasting: With ``stand_in``, how long somebody holds it, in words: ``the run lasts``.
    """

    def __init__(
        self, path: Path, *, mode: int = 0o666, stand_in: Path | None = None, lasting: str = ""
    ) -> None:
        self.path = path
        self._mode, self._lasting = mode, lasting
        self._file = _HolderFile(stand_in) if stand_in is not None else None
        self._descriptor: int | None = None
        self._no_locks = ""

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    @property
    def descriptor(self) -> int | None:
        """The open file of a lock that is held; a process that inherits it holds the lock too."""
        return self._descriptor

    def take(self, note: str = "", *, shared: bool = False, wait: bool = False) -> bool:
        """Take the lock, or return False at once if somebody else has it.

        Args:
            note: New content of the file.
            shared: Hold it together with others who share it.
            wait: Wait instead until nobody else has it.

        Raises:
            NoLocksError: the file system has no locks, and there is no file to stand for this one.
            OSError: the file cannot be opened; its last holder may have removed its folder.
        """
        for attempt in range(_ATTEMPTS):
            if self.held:
                break
            descriptor = self._open()
            try:
                if not self._locked(descriptor, shared, wait):
                    return False
                if self._stands(descriptor) or attempt == _ATTEMPTS - 1:
                    self._descriptor = descriptor
                    self._write(note)
            finally:
                if not self.held:
                    os.close(descriptor)
        return True

    def drop(self) -> None:
        """Give the lock back, if held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            if self._file is not None and self._file.own:
                self._file.drop()

    def holder(self) -> str:
        """Return who has the lock or had it last, in words, if the file's content is its id."""
        if self._no_locks and self._file is not None:
            return self._file.holder() or "another process"
        return f"pid {self._read() or 'unknown'}"

    def current_holder(self) -> str | None:
        """Return :meth:`holder` if somebody has the lock now, else None.

        This holds the lock for a moment.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # nobody took it ever, or we may not read it
            return None
        try:
            return None if _lock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB) else self.holder()
        except NoLocksError:
            return self._file.holder() if self._file is not None else None
        finally:
            os.close(descriptor)

    def remedy(self) -> str:
        """Return what to do about a holder of whom nobody here can tell whether it lives, or ""."""
        if not self._no_locks or self._file is None or not self._file.elsewhere:
            return ""
        return (
            f"its file system has no locks ({self._no_locks}), so nobody here can tell whether it "
            f"still runs; if it does not, type rm {shlex.quote(str(self._file.path))}"
        )

    def _open(self) -> int:
        """Open the file, or make it.

        Raises:
            OSError: it cannot be opened.
        """
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)

    def _locked(self, descriptor: int, shared: bool, wait: bool) -> bool:
        """Lock the open file, or make the file that stands for the lock; False if another has it.

        Raises:
            NoLocksError: as for :meth:`take`.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            return _lock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
        except NoLocksError as error:
            if self._file is None:
                raise
            self._no_locks = error.strerror or str(error)
            taken = self._file.take()
            if taken:
                name = self._file.path.name
                what = f"while {self._lasting}, {name} in it keeps other processes out"
                say_no_locks(self.path.parent, self._no_locks, what)
            return taken

    def _stands(self, descriptor: int) -> bool:
        """Whether the open file still has its name: its last holder may have removed it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _read(self) -> str:
        try:
            return self.path.read_text(errors="replace").strip()
        except OSError:
            return ""

    def _write(self, note: str) -> None:
        if note and self._descriptor is not None:
            with suppress(OSError):  # on a full disk the lock still holds
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, note.encode(), 0)


def _lock(descriptor: int, operation: int) -> bool:
    """Lock an open file; return False if another process has it.

    Raises:
        NoLocksError: its file system cannot lock.
    """
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        raise NoLocksError(error.errno, error.strerror) from None
    return True


@cache
def say_no_locks(place: Path, reason: str, consequence: str) -> None:
    """Print once per process that a place has no locks, why, and what follows."""
    note(f"{place}: its file system has no locks ({reason}); {consequence}")


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


class _HolderFile:
    """A file that names its holder, where there are no locks.

    Args:
        path: The file; it exists while somebody holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self) -> bool:
        """Make the file, or return False if another process holds it.

        Raises:
            OSError: it cannot be written.
        """
        for _ in range(_ATTEMPTS):
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                if self.holder() is not None:
                    return False
                continue
            with os.fdopen(descriptor, "w") as stream:
                json.dump(asdict(_Process(os.getpid(), _host(), _started(os.getpid()))), stream)
            return True
        return False

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
