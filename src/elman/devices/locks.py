"""Two locks per GPU, so that two launchers, or two users, never use one GPU together.

A launcher takes ``claim`` before it looks at a GPU. The job takes ``run`` and holds it until it
dies, even if its launcher is gone by then. Only the holder of ``claim`` may look whether ``run`` is
free. Jobs that share a GPU, because their user asked for it, hold ``run`` together; their launcher
keeps ``claim`` meanwhile. The kernel frees a lock when its holder dies, however it dies.
"""

from __future__ import annotations

import getpass
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from elman.base.errors import UserError
from elman.base.file_lock import FileLock, NoLocksError

FOLDER = "ELMAN_LOCKS"
"""Environment variable: folder of the locks instead of ``/tmp/elman-gpu-locks`` (for containers
that share GPUs but not /tmp, and for tests). The folder must be local to the machine."""


class GpuLock(FileLock):
    """One of the locks of one GPU; its file describes the holder, for people to read."""

    def __init__(self, uuid: str, kind: Literal["claim", "run"]) -> None:
        super().__init__(_folder() / f"{uuid}.{kind}")

    def take(self, note: str = "", *, shared: bool = False, wait: bool = False) -> bool:
        """Take the lock, or return False at once if somebody else has it.

        Args:
            note: What the holder does, for others to read.
            shared: Hold it together with others who share it.
            wait: Wait instead until nobody else has it.

        Raises:
            UserError: the file cannot be opened, or its file system has no locks.
        """
        lease = {"pid": os.getpid(), "user": _user(), "what": note}
        try:
            return super().take(json.dumps(lease) + "\n", shared=shared, wait=wait)
        except NoLocksError as error:
            raise UserError(
                f"{self.path}: its file system has no locks ({error.strerror}), so two jobs could "
                f"get one GPU; name a folder of this machine that has them with {FOLDER}=<folder>, "
                "or type launcher=local, which locks no GPU"
            ) from None

    def holder(self) -> str:
        """Return who took the lock last, in words."""
        try:
            lease = json.loads(self.path.read_text())
            return f"elman pid {lease['pid']} ({lease['user']}) {lease['what']}".rstrip()
        except (OSError, ValueError, KeyError, TypeError):  # the holder is just writing it
            return "another elman"

    def _open(self) -> int:
        """Open the file, or make it so that every user may lock and write it."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(100):
            try:
                # Without O_CREAT, which the kernel refuses for another user's file in such a
                # folder.
                return os.open(self.path, flags)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise _cannot(self.path, error) from None
            try:
                descriptor = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)
                return descriptor
            except FileExistsError:
                continue
            except OSError as error:
                raise _cannot(self.path, error) from None
        raise UserError(
            f"{self.path}: appears and vanishes; keep other programs out of that folder"
        )


def take_run_locks(
    uuids: Iterable[str], what: str, *, shared: bool = False
) -> list[GpuLock] | None:
    """Take the ``run`` locks of all GPUs of a job, or none of them and return None.

    They are taken in the order of their names, like everywhere.

    Args:
        uuids: The GPUs.
        what: What the job does, for others to read.
        shared: Whether other jobs of its sweep may hold them, too.
    """
    taken: list[GpuLock] = []
    for uuid in sorted(uuids):
        lock = GpuLock(uuid, "run")
        if not lock.take(what, shared=shared):
            for one in taken:
                one.drop()
            return None
        taken.append(lock)
    return taken


def _folder() -> Path:
    named = os.environ.get(FOLDER)
    folder = Path(named or tempfile.gettempdir()) / ("" if named else "elman-gpu-locks")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            # Shared by all users, like /tmp: they can lock each other's files, not remove them.
            folder.chmod(0o1777)
    except OSError as error:
        raise _cannot(folder, error) from None
    return folder


def _cannot(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: cannot lock a GPU there ({error.strerror}); "
        f"name a folder of this machine that you may write with {FOLDER}=<folder>"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return str(os.getuid())
