"""Opens files whose path is not UTF-8 with libraries that take no other paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_utf8(path: Path) -> Iterator[Path]:
    """Yield a path to an existing file that is UTF-8: the path itself, or another name of the file.

    Raises:
        OSError: the file cannot be opened.
    """
    if is_utf8(str(path)):
        yield path
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def is_utf8(text: str) -> bool:
    """Whether a path, or another text from the command line, was UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
