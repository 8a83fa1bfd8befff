"""Opens the files that a setting names, either directly or packed into the cache."""

from __future__ import annotations

import glob
from collections.abc import Sequence

from elman.data.choosing import chosen_to_score
from elman.data.files import ByteSource, may_hold_open
from elman.data.matching import Names
from elman.data.packing import Pack
from elman.data.planning import SourceFile
from elman.sections.training import DataFormat


def open_source(
    names: Names,
    format_: DataFormat = "auto",
    field: str = "text",
    *,
    setting: str = "data.path",
) -> ByteSource:
    """Return the bytes of files to score, in the order of their absolute paths.

    If all files are raw bytes, they are read in place. If one is compressed or has documents, or if
    this process may not hold so many files open, all are packed once into one file of the cache.

    Args:
        names: As :func:`~elman.data.matching.matched` takes them.
        format_: As ``data.format``.
        field: As ``data.field``.
        setting: The configuration key that named them, for error messages.

    Raises:
        UserError: a file cannot be read, or the cache cannot hold them.
    """
    chosen = chosen_to_score(names, format_, field, setting)
    return open_files(chosen.train, field, setting)


def open_files(files: Sequence[SourceFile], field: str, setting: str) -> ByteSource:
    """Return the bytes of files that were looked at, packed if need be; see :func:`open_source`."""
    source = _source(files, field, setting)
    return source.open() if isinstance(source, Pack) else source


def open_unpacked(files: Sequence[SourceFile], field: str, setting: str) -> ByteSource | None:
    """Return :func:`open_files`, or None if they must be packed first."""
    source = _source(files, field, setting)
    return source.finished() if isinstance(source, Pack) else source


def _source(files: Sequence[SourceFile], field: str, setting: str) -> ByteSource | Pack:
    if all(file.plain for file in files) and may_hold_open(len(files)):
        return ByteSource([glob.escape(file.path) for file in files], setting=setting)
    return Pack(tuple(files), field, setting)
