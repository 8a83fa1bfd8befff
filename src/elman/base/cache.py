"""The folders of compiled kernels and packed data, and who may have written what lies there.

What another user planted under the right name would run as this user. So a file counts only if it,
and every folder that leads to it in the cache, belongs to this user or to root and can be written
by nobody else. A cache of another owner counts if nobody but its owner can have made or changed it;
it is then read, and what it lacks is made in the user's own cache. Imports no torch.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from elman.base.errors import UserError
from elman.base.output import note
from elman.base.whole_file import whole_file

CACHE_VARIABLE = "ELMAN_CACHE"
Kind = Literal["kernels", "data", "text"]
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER_MODE, _FILE_MODE = 0o755, 0o644
_ROOT = 0


def cache_folder() -> Path:
    """Return the user's own cache: ``${XDG_CACHE_HOME:-~/.cache}/elman``.

    Raises:
        UserError: this user has no home.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(_absolute(root)) / "elman"


def named_cache() -> Path | None:
    """Return the folder that ``$ELMAN_CACHE`` names, or None."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(_absolute(named)) if named else None


def chosen_cache(kind: Kind) -> Path:
    """Return the folder of one kind of content: in ``$ELMAN_CACHE``, or in the user's own cache."""
    named = named_cache()
    return _of_own(kind) if named is None else _below(named, kind)


def cached(kind: Kind, name: str, record: str = "") -> Path:
    """Return the place of an entry: where it is, or where it is to be made.

    Args:
        kind: What it is.
        name: Its name in the folder of its kind.
        record: The file without which the entry is not whole; the entry itself if it is a file.

    Raises:
        UserError: somebody else may have written it, or may write where it is to be made.
    """
    return usable(kind, chosen_cache(kind) / name, record)


def usable(kind: Kind, place: Path, record: str = "") -> Path:
    """Return ``place``, or where to make what a cache lacks that this user only reads.

    Args:
        kind: As for :func:`cached`, and so are the others.
        place: The entry in the chosen cache.
        record: As there.

    Raises:
        UserError: as there.
    """
    check_unshared(place / record)
    named = named_cache()
    if named is None or not _read_only(named) or (place / record).exists():
        return place
    own = _of_own(kind) / place.relative_to(chosen_cache(kind))
    check_unshared(own / record)
    if not (own / record).exists():
        _say_read_only(named, cache_folder())
    return own


def check_unshared(path: Path) -> None:
    """Check that nobody but this user, root, or the owner of a safe cache may have written a file.

    What does not exist yet is not looked at; the folders above it in the cache are.

    Raises:
        UserError: somebody else may have written it.
    """
    root = _root_of(path)
    trusted = _trusted(root)
    inside = path.relative_to(root)
    for place in (*reversed(inside.parents), inside):
        with suppress(FileNotFoundError, NotADirectoryError):
            _check(root / place, root, trusted)


def make_cache_folder(folder: Path) -> None:
    """Make a folder of a cache, and those above it, so that nobody else can write there.

    Raises:
        OSError: it cannot be made.
    """
    if folder.is_dir():
        return
    if not os.path.lexists(folder.parent):
        make_cache_folder(folder.parent)
    try:
        folder.mkdir(_FOLDER_MODE)
        keep_from_others(folder)
    except FileExistsError:  # another process has just made it
        if not folder.is_dir():
            raise


def keep_from_others(path: Path) -> None:
    """Let nobody else write what this user has just made, whatever the umask is.

    Raises:
        OSError: its mode cannot be changed.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS_WRITE:
        path.chmod(mode & ~_OTHERS_WRITE)


@contextmanager
def whole_cache_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which takes the place of a file of the cache at the end.

    Its folder is made. Any number of processes may write it at the same time.

    Raises:
        OSError: it cannot be written.
    """
    make_cache_folder(path.parent)
    with whole_file(path, several=True) as scratch:
        scratch.touch(_FILE_MODE)
        yield scratch


def put_file(path: Path, text: str) -> None:
    """Write a file of the cache whole or not at all; its folder is made.

    Raises:
        OSError: it cannot be written.
    """
    with whole_cache_file(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _absolute(name: str) -> str:
    expanded = os.path.expanduser(name)
    if expanded.startswith("~"):
        raise UserError(
            f"{name}: this user has no home folder (HOME is not set); set HOME, or set "
            f"{CACHE_VARIABLE} to a folder that can be written"
        )
    return os.path.abspath(expanded)


def _of_own(kind: Kind) -> Path:
    folder = cache_folder()
    return folder / "kernels" if kind == "kernels" else _below(folder, kind)


def _below(folder: Path, kind: Kind) -> Path:
    return folder / "data" if kind == "data" else folder


def _root_of(path: Path) -> Path:
    named = named_cache()
    root = named if named is not None and path.is_relative_to(named) else cache_folder()
    return root if path.is_relative_to(root) else path.parent


@dataclass(frozen=True)
class _Trusted:
    """Whose files count.

    Args:
        users: Their numbers.
        why_not: Why the owner of the cache is not one of them; empty if it is.
    """

    users: frozenset[int]
    why_not: str = ""


def _trusted(root: Path) -> _Trusted:
    users = frozenset({_ROOT, os.geteuid()})
    try:
        owner = root.stat().st_uid
    except OSError:
        return _Trusted(users)
    if owner in users:
        return _Trusted(users)
    if os.geteuid() == _ROOT and os.access(root, os.W_OK):
        return _Trusted(users, "root may write it")
    if (place := _made_by_anybody(root, owner)) is not None:
        return _Trusted(users, f"others may write in {place} above it")
    return _Trusted(users | {owner})


def _made_by_anybody(root: Path, owner: int) -> Path | None:
    """Return the folder above another owner's cache in which somebody else could have made it.

    In a folder that everybody writes, as /tmp, only root and this user are known not to be
    somebody else.
    """
    own = {_ROOT, os.geteuid()}
    below = Path(os.path.realpath(root))
    for above in below.parents:
        found = above.stat()
        if found.st_uid not in own | {owner}:
            return above
        if found.st_mode & _OTHERS_WRITE and below.stat().st_uid not in own:
            return above
        below = above
    return None


def _check(place: Path, root: Path, trusted: _Trusted) -> None:
    found = place.stat()
    if found.st_uid not in trusted.users:
        why = f" ({trusted.why_not})" if trusted.why_not else ""
        raise UserError(
            f"{place}: belongs to {_user(found.st_uid)}, who may have put any code there{why}; "
            f"it is not used; {_owner_remedy(place, root)}set {CACHE_VARIABLE} to a folder of your "
            "own"
        )
    if found.st_mode & _OTHERS_WRITE:
        remedy = f"chmod -R go-w {shlex.quote(str(root))}"
        mine = os.geteuid() in (_ROOT, found.st_uid)
        remedy = f"type {remedy}" if mine else f"ask {_user(found.st_uid)} to type {remedy}"
        raise UserError(
            f"{place}: other users may write it (mode {stat.S_IMODE(found.st_mode):o}), so it may "
            f"hold any code; it is not used; {remedy} if you trust what is there, or set "
            f"{CACHE_VARIABLE} to a folder of your own"
        )


def _owner_remedy(place: Path, root: Path) -> str:
    """Return what this user can do about another owner."""
    if os.geteuid() == _ROOT:
        return f"type chown -R {_user(_ROOT)} {shlex.quote(str(root))} if you trust it, or "
    if place != root and place.parent.stat().st_uid == os.geteuid():
        return f"type rm -r {shlex.quote(str(place))}, or "
    return ""


def _read_only(root: Path) -> bool:
    """Whether a cache exists in which this user makes nothing: not allowed to, or another's."""
    if not root.is_dir():
        return False
    foreign = root.stat().st_uid != os.geteuid()
    return foreign or not os.access(root, os.W_OK | os.X_OK)


@cache
def _say_read_only(shared: Path, own: Path) -> None:
    note(f"{shared} is read-only here; what it lacks is made in {own}")


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
