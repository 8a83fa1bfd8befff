"""Writes files and folders whole or not at all: after a crash, what was there before stays.

No other file of the package renames anything (`banned-api` in pyproject.toml). Imports no torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

RESULT_BYTES = 1 << 16
"""Bytes that a run reserves for its result at the start."""
HALF_WRITTEN = ".*.unfinished"
"""Pattern of the names of files that are being written, or that a killed process left."""
# A name and what is added to it may be longer than a name can be.
_LONGEST_NAME = 32


@contextlib.contextmanager
def whole_file(path: Path, *, several: bool = False) -> Iterator[Path]:
    """Yield the path of a file to write; at the end it takes the place of ``path``.

    By then its content is on the disk. If the context fails, the file is removed.

    Args:
        path: The file.
        several: Whether several processes may write it at the same time.

    Raises:
        OSError: it cannot be written.
    """
    scratch = _of_own(path) if several else unfinished(path)
    try:
        yield scratch
        sync(scratch)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill with files; at the end it takes the place of ``path``.

    By then its files are on the disk. If the context fails, the folder is removed.

    Args:
        path: The folder; there is none, or it is empty.

    Raises:
        OSError: it cannot be written.
    """
    scratch = _of_own(path)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        for file in scratch.iterdir():
            sync(file)
        sync(scratch)
        os.replace(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def put_bytes(path: Path, content: bytes, *, several: bool = False) -> None:
    """Write a file whole or not at all, into the space reserved for it, if there is any.

    Args:
        path: The file.
        content: All of it.
        several: As for :func:`whole_file`.

    Raises:
        OSError: it cannot be written.
    """
    with whole_file(path, several=several) as scratch:
        # Without O_TRUNC: it would free the reserved space before anything is written.
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.truncate()


def put_text(path: Path, text: str, *, several: bool = False, errors: str = "strict") -> None:
    """Write UTF-8 as :func:`put_bytes` does; ``errors`` is that of ``str.encode``."""
    put_bytes(path, text.encode(errors=errors), several=several)


def put_json(path: Path, tree: Any) -> None:
    """Write a tree as indented JSON, as :func:`put_bytes` does."""
    put_text(path, json.dumps(tree, indent=2) + "\n")


def rename(old: Path, new: Path) -> None:
    """Give a file, a folder or a link another name; a file of that name is replaced at once.

    Raises:
        OSError: it cannot be renamed.
    """
    os.replace(old, new)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(path: Path) -> Path:
    """Return the name under which the one writer of a file writes it before it is renamed."""
    return path.with_name(f".{path.name}.unfinished")


def _of_own(path: Path) -> Path:
    """Return such a name that no other process uses."""
    return path.with_name(f".{path.name[:_LONGEST_NAME]}.{token_hex(4)}.unfinished")


def keep_room(path: Path, size: int = RESULT_BYTES) -> None:
    """Reserve the space for a file now, so that it can be written later on a full disk.

    Args:
        path: The file.
        size: Bytes; that of a run's result by default.

    Raises:
        OSError: there is not enough space.
    """
    scratch = unfinished(path)
    try:
        with scratch.open("wb") as stream:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(stream.fileno(), 0, size)
            else:
                stream.write(bytes(size))
    except OSError as error:
        give_room_back(path)
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return  # this file system cannot reserve space
        raise OSError(error.errno, error.strerror, str(path.parent)) from None


def give_room_back(path: Path) -> None:
    """Remove the space that was reserved for a file and not used."""
    with contextlib.suppress(OSError):
        unfinished(path).unlink()


@contextlib.contextmanager
def usual_permissions(path: Path) -> Iterator[None]:
    """Let a new file that is written inside this context have the permissions that others have.

    The library safetensors makes private files; others follow the umask of the process.

    Args:
        path: The file.

    Raises:
        OSError: it cannot be made.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield
    path.chmod(mode)
