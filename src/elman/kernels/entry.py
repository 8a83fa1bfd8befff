"""Locks a kernel's folder in the cache while it is made, and removes the leftovers of kills.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from elman.base.cache import keep_from_others, make_cache_folder
from elman.base.file_lock import FileLock, NoLocksError, say_no_locks
from elman.base.output import note
from elman.base.whole_file import HALF_WRITTEN, rename

_LOCK, _SCRATCH = "lock", "building-"
# A record is written in milliseconds.
_OLD_SECONDS = 3600.0


@contextlib.contextmanager
def making(folder: Path, label: str) -> Iterator[None]:
    """Hold the lock of a kernel's folder; make the folder, and remove it if it stays empty.

    The system frees the lock when its holder dies, for whatever reason. Leftovers of killed
    processes in the cache are removed.

    Args:
        folder: The folder.
        label: Name of the kernel, for people who wait for another process.
    """
    lock = _locked(folder, label)
    try:
        if lock.held:  # else a scratch folder may be that of a process that works
            _clear(folder)
            _sweep(folder.parent)
        yield
    finally:
        if lock.held:
            with contextlib.suppress(OSError):
                _remove_empty(folder)
        lock.drop()


@contextlib.contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in a kernel's folder; it is removed with its content."""
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def install(scratch: Path, folder: Path, *names: str) -> None:
    """Move finished files into a kernel's folder, one after the other; only this user may write.

    Raises:
        OSError: one cannot be moved.
    """
    for name in names:
        keep_from_others(scratch / name)
        rename(scratch / name, folder / name)


def _locked(folder: Path, label: str) -> FileLock:
    """Return a folder's lock, held where there are locks.

    Its last holder may have removed both. Where the file system has no locks, several processes may
    make a kernel at once: each in a scratch folder, and the last one to end replaces the others'.
    """
    lock = FileLock(folder / _LOCK, mode=0o644)
    while not lock.held:
        make_cache_folder(folder)
        try:
            if not lock.take():
                note(f"another process is compiling the {label} kernel: waiting for it ...")
                lock.take(wait=True)
        except FileNotFoundError:
            continue
        except NoLocksError as error:
            what = "two processes may compile one kernel at once, which costs time alone"
            say_no_locks(folder.parent, error.strerror, what)
            break
    return lock


def _clear(folder: Path) -> None:
    """Remove the scratch folders of killed processes; the caller holds the lock."""
    for leftover in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    """Remove a folder that has nothing but its lock; the caller holds the lock."""
    if [path.name for path in folder.iterdir()] == [_LOCK]:
        (folder / _LOCK).unlink()
        folder.rmdir()


@cache
def _sweep(kernels: Path) -> None:
    """Remove what killed processes left anywhere in the cache; done once per process.

    A folder is changed only under its lock, so files of a working process are never removed.
    """
    with contextlib.suppress(OSError):
        for folder in {leftover.parent for leftover in kernels.glob(f"*/{_SCRATCH}*")}:
            with contextlib.suppress(OSError):
                _sweep_folder(folder)
        for path in kernels.glob(f"*/{HALF_WRITTEN}"):
            if time.time() - path.stat().st_mtime > _OLD_SECONDS:
                path.unlink(missing_ok=True)


def _sweep_folder(folder: Path) -> None:
    lock = FileLock(folder / _LOCK, mode=0o644)
    if lock.take():
        _clear(folder)
        _remove_empty(folder)
        lock.drop()
