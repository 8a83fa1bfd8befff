"""Paths that a user names in a setting: one line says what is wrong with one. Imports no torch."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from elman.base.errors import UserError

# A path can be at fault for these; a full or broken disk is not.
_OF_THE_PATH = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
        errno.ETXTBSY,
    }
)
_SHOWN = 60


def writable_file(key: str, text: str) -> Path:
    """Return the path of a file that may be written, in a folder that exists.

    Args:
        key: The setting that names it.
        text: The path as typed.

    Raises:
        UserError: it is a folder, a device, or in no folder, or may not be written.
    """
    path = Path(os.path.realpath(Path(text).expanduser()))
    named = f"{key}={shortened(text)}"
    try:
        found = _mode(path)
        if not text.strip() or text.endswith("/") or (found and stat.S_ISDIR(found)):
            raise UserError(f"{named}: this is a folder; name a file in it, as in {key}=a-file")
        if found and not stat.S_ISREG(found):
            raise UserError(f"{named}: this is {_kind(found)}; name an ordinary file")
        above = _mode(path.parent)
        if not above:
            raise UserError(f"{named}: no such folder {path.parent}; make it, or name another")
        if not stat.S_ISDIR(above):
            raise UserError(f"{named}: {path.parent} is a file, not a folder; name another")
    except OSError as error:
        raise UserError(f"{named}: {_said(error)}; name another file") from None
    if not os.access(path.parent, os.W_OK | os.X_OK) or (found and not os.access(path, os.W_OK)):
        raise UserError(f"{named}: may not be written; name a file where you may write")
    try:
        # Some folders, as /proc, take no new file though their rights allow it.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise UserError(f"{named}: {path.parent} takes no file; name another folder") from error
    return path


def readable_file(key: str, text: str) -> Path:
    """Return the path of an ordinary file that exists and may be read.

    Raises:
        UserError: it is none.
    """
    path, named = Path(text).expanduser(), f"{key}={shortened(text)}"
    try:
        found = _mode(path)
    except OSError as error:
        raise UserError(f"{named}: {_said(error)}; name another file") from None
    if not found:
        raise UserError(f"{named}: no such file")
    if stat.S_ISDIR(found):
        raise UserError(f"{named}: this is a folder; name a file in it")
    if not stat.S_ISREG(found):
        raise UserError(f"{named}: this is {_kind(found)}; name an ordinary file")
    if not os.access(path, os.R_OK):
        raise UserError(f"{named}: may not be read; name a file that you may read")
    return path


def path_at_fault(error: BaseException, overrides: Iterable[str]) -> UserError | None:
    """Return the line for an error about a path that an override names, or that lies below it.

    Args:
        error: Any error.
        overrides: What was typed.

    Returns:
        None if the error is not about such a path.
    """
    if not isinstance(error, OSError) or error.errno not in _OF_THE_PATH or not error.filename:
        return None
    file = os.path.abspath(os.fsdecode(error.filename))
    for override in overrides:
        key, equals, value = override.partition("=")
        text = value.strip("'\"")
        if not equals or not text.strip("./ "):
            continue
        place = os.path.abspath(os.path.expanduser(text))
        if file == place or file.startswith(f"{place}{os.sep}"):
            inside = "" if file == place else f" ({shortened(os.path.relpath(file, place))} in it)"
            return UserError(
                f"{key.lstrip('+')}={shortened(text)}: {_said(error)}{inside}; name another path"
            )
    return None


def shortened(text: str) -> str:
    """Return a path, in the middle shortened if it is very long."""
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]}...{text[-20:]}"


def _mode(path: Path) -> int:
    """Return the kind and rights of what a path names; 0 if there is nothing.

    Raises:
        OSError: the name is too long, a folder above may not be searched, or links form a circle.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def _said(error: OSError) -> str:
    words = {errno.ENAMETOOLONG: "the name is too long", errno.ELOOP: "its links form a circle"}
    return words.get(error.errno or 0, (error.strerror or "cannot be used").lower())
