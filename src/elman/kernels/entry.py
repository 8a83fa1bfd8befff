"""One kernel's folder in the cache while it is made: one process at a time, and no litter after it.

Imports no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_LOCK, _SCRATCH = "lock", "building-"
# Proofs and compilers' records are written beside their place, in milliseconds, and renamed.
_BESIDE, _OLD_SECONDS = re.compile(r".+\.json\.\d+"), 3600.0


@contextlib.contextmanager
def making(folder: Path, label: str) -> Iterator[None]:
    """Hold a kernel's folder, made if it is not there; removed again if nothing came of it.

    The system frees the lock when its holder dies, however it dies. What a killed process left in
    the cache is removed.

    Args:
        folder: The folder.
        label: What the kernel is, for people who wait for another process.
    """
    descriptor = _locked(folder, label)
    try:
        _clear(folder)
        _sweep(folder.parent)
        yield
    finally:
        with contextlib.suppress(OSError):
            _remove_empty(folder)
        os.close(descriptor)


@contextlib.contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder in a kernel's folder that goes away with what is left in it."""
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def say(line: str) -> None:
    """Print a line on the error stream."""
    print(f"elman: {line}", file=sys.stderr, flush=True)


def _locked(folder: Path, label: str) -> int:
    """Return a descriptor that holds the lock of a folder; who had it may have removed both."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue
        try:
            _wait(descriptor, label)
            if _stands(folder, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _wait(descriptor: int, label: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another process is compiling the {label} kernel: waiting for it ...")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _stands(folder: Path, descriptor: int) -> bool:
    """Whether the locked file is still the one that others find in the folder."""
    try:
        return os.path.samestat(os.stat(folder / _LOCK), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _clear(folder: Path) -> None:
    """Remove the scratch folders of processes that were killed; the lock is held."""
    for leftover in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    """Remove a folder in which there is nothing but its lock, which is held."""
    if [path.name for path in folder.iterdir()] == [_LOCK]:
        (folder / _LOCK).unlink()
        folder.rmdir()


@cache
def _sweep(kernels: Path) -> None:
    """Once in a process: remove what killed processes left anywhere in the cache.

    A folder is touched under its lock alone, so nothing of a process that works is taken away.
    """
    with contextlib.suppress(OSError):
        for folder in {leftover.parent for leftover in kernels.glob(f"*/{_SCRATCH}*")}:
            with contextlib.suppress(OSError):
                _sweep_folder(folder)
        for path in kernels.glob("*/*.json.*"):
            old = time.time() - path.stat().st_mtime > _OLD_SECONDS
            if old and _BESIDE.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _sweep_folder(folder: Path) -> None:
    descriptor = os.open(folder / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _stands(folder, descriptor):
            _clear(folder)
            _remove_empty(folder)
    finally:
        os.close(descriptor)
