"""Finds the files that a setting names: a file, a glob, a folder, or a list of these.

Only what was typed is a pattern. A folder that a typed name starts from, such as the current one,
is never read as one, and a name that exists is that name. Standard library only.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from elman.base.errors import UserError, nearest, suggest
from elman.base.run_files import OUTPUT_MARKS
from elman.sections.training import BPE, BYTES, TIKTOKEN

Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""What a setting names: one name or a list of them."""

# A missing file's name is like another one if this share of letters is; shorter names never are.
_LIKE, _SHORTEST = 0.75, 3
_ANY_DEPTH = "**"


@dataclass(frozen=True)
class Match:
    """One file.

    Args:
        path: Absolute path.
        status: Its status.
        typed: The name that the user typed.
        inside: Its folders below the part of that name that is no pattern, and its own name;
            empty if the user named this very file.
    """

    path: str
    status: os.stat_result
    typed: str
    inside: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether the user named this very file, not a pattern or a folder."""
        return not self.inside

    @property
    def identity(self) -> tuple[int, int]:
        """What is equal for two names of one file."""
        return self.status.st_dev, self.status.st_ino


@dataclass(frozen=True)
class Left:
    """Something below a folder or glob that is not read.

    Args:
        path: Absolute path.
        why: The reason in a few words.
    """

    path: str
    why: str


@dataclass(frozen=True)
class Matches:
    """The files that a setting names, in the order of their paths, and what was passed over."""

    files: list[Match]
    left: list[Left]


@dataclass
class _Found:
    """What one typed name leads to: paths with the parts below the fixed folder."""

    paths: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    folders: int = 0


def matched(names: Names, setting: str) -> Matches:
    """Return each distinct file that is not empty, ordered by absolute path.

    A file that is named twice, even through links, counts once. Empty files that a pattern or a
    folder holds are passed over.

    Args:
        names: Files, globs (``**`` descends into folders) and folders. ``~`` is the home folder;
            relative names start at the current folder.
        setting: The configuration key that named them, for error messages.

    Raises:
        UserError: a name does not exist, matches nothing, or is an empty file, an unreadable file
            or folder, or not a regular file.
    """
    typed = [names] if isinstance(names, str | os.PathLike) else list(names)
    if not typed or "" in typed:
        raise UserError(f"{setting}: names no file; type {setting}=FILE")
    by_path: dict[str, Match] = {}
    left: dict[str, Left] = {}
    for name in [os.fspath(item) for item in typed]:
        found = _found(name, setting)
        left |= {one.path: one for one in found.left}
        for path, inside in found.paths:
            if path not in by_path or not inside:
                by_path[path] = Match(path, _checked_status(path, setting), name, inside)
    files = list(_distinct(by_path, setting))
    if not files:
        raise UserError(f"{setting}={names}: matches empty files only; name others")
    return Matches(files, [one for path, one in sorted(left.items()) if path not in by_path])


def _distinct(by_path: dict[str, Match], setting: str) -> Iterator[Match]:
    seen: set[tuple[int, int]] = set()
    for path, match in sorted(by_path.items()):
        if match.identity in seen:
            continue
        seen.add(match.identity)
        if match.status.st_size > 0:
            yield match
        elif match.named:
            raise UserError(f"{setting}={path}: the file is empty; name one that holds text")


def anchored(name: str) -> str:
    """Return a typed name with its folder, so that it means the same in every folder.

    What is no pattern now stays none, even if it is removed: its special characters are escaped.
    """
    if not name:
        return name
    base, parts = _fixed_part(name)
    return os.path.join(glob.escape(base), *parts)


def anchored_tokenizer(setting: str) -> str:
    """Return ``data.tokenizer`` with the folder of the file that it names, if it names one."""
    if setting in (BYTES, BPE):
        return setting
    kind = TIKTOKEN if setting.startswith(TIKTOKEN) else ""
    path = os.path.abspath(os.path.expanduser(setting.removeprefix(kind)))
    return f"{kind}{path}" if os.path.exists(path) else setting


def _found(name: str, setting: str) -> _Found:
    base, parts = _fixed_part(name)
    found = _Found()
    if not parts and not os.path.isdir(base):
        found.paths.append((base, ()))
        return found
    try:
        os.stat(base)
    except FileNotFoundError:
        raise UserError(f"{setting}={name}: {_what_is_missing(os.path.join(base, '*'))}") from None
    except OSError as error:
        refuse(base, setting, error)
    _Walk(setting, found).below(base, parts or [_ANY_DEPTH, "*"], (), frozenset())
    if not found.paths:
        _refuse_nothing(setting, name, base, parts, found)
    return found


def _fixed_part(name: str) -> tuple[str, list[str]]:
    """Return the absolute path that a name starts with, and the parts that are a pattern."""
    if name.startswith("~"):
        home, _, rest = name.partition("/")
        base = os.path.expanduser(home)
    else:
        base, rest = ("/" if name.startswith("/") else os.getcwd()), name
    whole = os.path.abspath(os.path.join(base, rest.lstrip("/")))
    if os.path.lexists(whole):
        return whole, []
    parts = [part for part in rest.split("/") if part]
    while parts:
        text = _literal(parts[0])
        if text is None and os.path.lexists(os.path.join(base, parts[0])):
            text = parts[0]
        if text is None:
            break
        base = os.path.join(base, text)
        del parts[0]
    return os.path.abspath(base), parts


def _literal(part: str) -> str | None:
    """Return the name that a part of a path stands for, or None if it is a pattern."""
    text = re.sub(r"\[([*?[])\]", r"\1", part)
    return text if part == glob.escape(text) or not glob.has_magic(part) else None


@dataclass(frozen=True)
class _Walk:
    """Descends into folders after a pattern.

    Args:
        setting: For error messages.
        found: Takes what is found.
    """

    setting: str
    found: _Found

    def below(
        self,
        folder: str,
        parts: Sequence[str],
        inside: tuple[str, ...],
        above: frozenset[tuple[int, int]],
    ) -> None:
        """Add what the parts of a pattern match in a folder.

        Args:
            folder: Absolute path.
            parts: The parts; ``**`` stands for any number of folders.
            inside: The folders between the fixed part of the name and this folder.
            above: Identities of the folders above: a link to one of them is a circle.
        """
        part, rest = parts[0], list(parts[1:])
        deep = part == _ANY_DEPTH
        if deep:
            while rest[:1] == [_ANY_DEPTH]:
                del rest[0]
            self.below(folder, rest or ["*"], inside, above)
        status = os.stat(folder)
        above |= {(status.st_dev, status.st_ino)}
        for name in self._names(folder):
            path, now = os.path.join(folder, name), (*inside, name)
            if name.startswith(".") and not part.startswith("."):
                if deep:
                    self.found.left.append(Left(path, "hidden"))
            elif deep:
                if os.path.isdir(path) and self._enters(path, above):
                    self.below(path, parts, now, above)
            elif fnmatch.fnmatchcase(name, part):
                self._matched(path, rest, now, above)

    def _matched(
        self,
        path: str,
        rest: Sequence[str],
        inside: tuple[str, ...],
        above: frozenset[tuple[int, int]],
    ) -> None:
        if os.path.isdir(path):
            self.found.folders += not rest
            if rest:
                self.below(path, rest, inside, above)
        elif not rest:
            self.found.paths.append((path, inside))

    def _names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except NotADirectoryError:
            return []
        except OSError as error:
            refuse(folder, self.setting, error)

    def _enters(self, folder: str, above: frozenset[tuple[int, int]]) -> bool:
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in above:
            return False
        names = set(self._names(folder))
        if any(mark <= names for mark in OUTPUT_MARKS):
            self.found.left.append(Left(folder, "a run of elman"))
            return False
        return True


def _refuse_nothing(
    setting: str, name: str, base: str, parts: Sequence[str], found: _Found
) -> NoReturn:
    """Raise UserError for a glob or folder in which there is no file."""
    if found.folders and parts:
        deeper = shlex.quote(f"{setting}={os.path.join(name, _ANY_DEPTH, '*')}")
        raise UserError(
            f"{setting}={name}: matches folders only; for every file in them type {deeper}"
        )
    listing = f"ls {shlex.quote(base)}" if base != os.getcwd() else "ls"
    said = f"matches no file under {base}" if parts else "a folder without a file to read"
    raise UserError(f"{setting}={name}: {said}; to see what is there type: {listing}")


def _checked_status(path: str, setting: str) -> os.stat_result:
    try:
        status = os.stat(path)
    except OSError as error:
        refuse(path, setting, error)
    if stat.S_ISREG(status.st_mode):
        return status
    kind = "a pipe" if stat.S_ISFIFO(status.st_mode) else "a device or socket"
    raise UserError(
        f"{setting}={path}: {kind}, not a regular file; save its bytes in a file and name that"
    )


def refuse(path: str, setting: str, error: OSError) -> NoReturn:
    """Raise UserError with the message for a path that cannot be opened."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        raise UserError(f"{setting}={path}: {_what_is_missing(path)}") from None
    if isinstance(error, PermissionError):
        closed = path if os.path.lexists(path) else os.path.dirname(path)
        raise UserError(
            f"{setting}={path}: you may not read it; type: chmod u+rX {closed}, or name another"
        ) from None
    raise UserError(f"{setting}={path}: {error.strerror}; name another file") from None


def _what_is_missing(path: str) -> str:
    """Say which part of a path does not exist, and the most similar name in that folder."""
    if os.path.islink(path):
        return f"a link to {os.readlink(path)}, which does not exist; name another file"
    missing = Path(path)
    while not (os.path.exists(missing.parent) or missing.parent == missing):
        missing = missing.parent
    folder = missing.parent
    if not os.path.isdir(folder):
        return f"{folder} is a file, not a folder; name that file"
    kind = "file" if missing == Path(path) else f"folder {missing.name}"
    best = _named_like(missing, _names_in(folder))
    hint = f" ({suggest(best)})" if best else "; name a file that exists"
    return f"no such {kind} in {folder}{hint}"


def _named_like(missing: Path, names: Sequence[str]) -> str | None:
    """Return the name most like a missing one. Its ending says nothing: many files share one."""
    names = sorted(names, key=lambda name: Path(name).suffix == missing.suffix)
    best = nearest(missing.stem, by_stem := {Path(name).stem: name for name in names}, _LIKE)
    short = len(missing.stem) < _SHORTEST
    return None if best is None or (short and best != missing.stem) else by_stem[best]


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
