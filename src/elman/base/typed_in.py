"""The folder in which the command was typed: Hydra may change the current one for a run.

A path that is printed to be typed again starts from there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_folder: Path | None = None


@contextlib.contextmanager
def typed_here() -> Iterator[None]:
    """Note the current folder as that of the command which runs inside this context."""
    global _folder
    before, here = _folder, None
    with contextlib.suppress(OSError):  # the folder may be gone
        here = Path.cwd()
    _folder = here
    try:
        yield
    finally:
        _folder = before


def typed_in() -> Path:
    """Return the folder of the command, or the current one where there is no command."""
    return _folder or Path.cwd()


def relative(path: Path) -> Path:
    """Return a path as a person would type it: relative to the folder of the command if inside."""
    with contextlib.suppress(ValueError, OSError):
        return path.relative_to(typed_in())
    return path


def shortest(path: Path) -> str:
    """Return a path as text, relative to the folder of the command if that is shorter."""
    from_there = os.path.relpath(path, typed_in())
    return min(from_there, str(path), key=len)
