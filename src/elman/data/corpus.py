"""The default data: the text of the running Python's own standard library.

This gives real text on every machine without a download. It is cached as one file in
``$ELMAN_CACHE``, or in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from elman.base.cache import CACHE_VARIABLE, cached, whole_cache_file
from elman.base.errors import UserError
from elman.base.units import size_text
from elman.sections.training import SEPARATOR

# Tests are long lists of literals, idlelib is an application, and the others are not the library.
LEFT_OUT = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"})


def default_corpus(announce: Callable[[str], None]) -> Path:
    """Return the file with the standard library's text; build it if it does not exist.

    The text is all ``*.py`` files of the library except those under :data:`LEFT_OUT`, ordered by
    the SHA-256 of their relative paths, with the byte 0x1e between files. The file's name has the
    Python version and a hash of the list of files and sizes. Any number of processes may build it
    at once: each writes its own temporary file, and every rename installs the same content.

    Args:
        announce: Called with one line when the file has to be built.

    Raises:
        UserError: this Python has no source files, or the cache folder cannot be written.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = _sources(library)
    if not sources:
        raise UserError(
            f"data.path: this Python has no source text of its standard library in {library}; "
            f"name a text of your own, as in data.path=FILE"
        )
    size = sum(size for _, size in sources) + len(SEPARATOR) * (len(sources) - 1)
    path = cached("text", f"stdlib-{platform.python_version()}-{_list_hash(sources)}.txt")
    try:
        if not (path.is_file() and path.stat().st_size == size):
            announce(
                f"building the default data, the Python standard library's text: "
                f"{len(sources)} files, {size_text(size)} -> {path}"
            )
            _build(path, [library / name for name, _ in sources])
    except OSError as error:
        raise UserError(
            f"data.path: cannot build the default data ({error.strerror}: {error.filename}); set "
            f"{CACHE_VARIABLE} to a writable folder, or name a text of your own: data.path=FILE"
        ) from None
    return path


def _sources(library: Path) -> list[tuple[str, int]]:
    """Return the relative POSIX path and size of every file, in the order of the corpus."""
    found = [(path.relative_to(library).as_posix(), path.stat().st_size) for path in _walk(library)]
    return sorted(found, key=lambda source: hashlib.sha256(source[0].encode()).digest())


def _walk(library: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT]
        paths = (Path(folder, name) for name in names if name.endswith(".py"))
        yield from (path for path in paths if path.is_file())


def _list_hash(sources: list[tuple[str, int]]) -> str:
    listing = "".join(f"{name}\0{size}\n" for name, size in sources)
    return hashlib.sha256(listing.encode()).hexdigest()[:12]


def _build(path: Path, files: list[Path]) -> None:
    """Write the joined files."""
    with whole_cache_file(path) as scratch, scratch.open("wb") as out:
        for index, file in enumerate(files):
            out.write((SEPARATOR if index else b"") + file.read_bytes())
