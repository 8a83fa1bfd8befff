"""Finds and hashes the C++ and CUDA sources that a generated text includes. Imports no torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


@cache
def source_folder() -> Path:
    """Return the folder of the C++ and CUDA sources, the ``-I`` of every compilation."""
    return Path(str(files("elman.csrc"))).resolve()


def included_sources(text: str) -> list[Path]:
    """Return our files that a text includes, directly or indirectly, in alphabetical order.

    An include in quotes is looked up first in the folder of the including file and then in
    :func:`source_folder`, as compilers do. An include inside ``#if`` counts, too.
    """
    found: set[Path] = set()
    waiting = _included(text, source_folder())
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _included(_read(path).decode(), path.parent)
    return sorted(found)


def sources_hash(text: str) -> str:
    """Return a hash of a text and of all files that it includes, as they were when first read."""
    digest = hashlib.sha256(text.encode())
    _add(digest.update, source_folder(), included_sources(text))
    return digest.hexdigest()


def files_hash(root: Path, paths: Iterable[Path]) -> str:
    """Return a hash of the names below ``root`` and the contents of ``paths``."""
    digest = hashlib.sha256()
    _add(digest.update, root, sorted(paths))
    return digest.hexdigest()


def _add(update: Callable[[bytes], None], root: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        content = _read(path)
        update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        update(content)


def _included(text: str, beside: Path) -> list[Path]:
    places = (beside, source_folder())
    found = []
    for name in _INCLUDE.findall(text):
        paths = ((place / name).resolve() for place in places)
        found += [path for path in paths if path.is_file()][:1]
    return found


@cache
def _read(path: Path) -> bytes:
    return path.read_bytes()
