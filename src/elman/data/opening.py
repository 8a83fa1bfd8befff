"""Opens the files that a setting names, either directly or packed into the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence

from elman.data.files import ByteSource, may_hold_open
from elman.data.packing import Pack
from elman.data.planning import plan
from elman.sections.training import DataFormat


def open_source(
    names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format_: DataFormat = "auto",
    field: str = "text",
    *,
    setting: str = "data.path",
) -> ByteSource:
    """Return the bytes of files, in the order of their absolute paths.

    If all files are raw bytes, they are read in place. If one is compressed or has documents, or if
    this process may not hold so many files open, all are packed once into one file of the cache.

    Args:
        names: As :class:`~elman.data.files.ByteSource` takes them.
        format_: As ``data.format``.
        field: As ``data.field``.
        setting: The configuration key that named them, for error messages.

    Raises:
        UserError: a file cannot be read, or the cache cannot hold them.
    """
    source = _open(names, format_, field, setting)
    return source.open() if isinstance(source, Pack) else source


def open_without_packing(
    names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format_: DataFormat,
    field: str,
) -> ByteSource | None:
    """Return :func:`open_source` of ``data.path``; None if it must be packed first.

    Raises:
        UserError: a file is missing, or elman cannot read its kind.
    """
    source = _open(names, format_, field, "data.path")
    return source.finished() if isinstance(source, Pack) else source


def _open(
    names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format_: DataFormat,
    field: str,
    setting: str,
) -> ByteSource | Pack:
    files = plan(names, format_, setting)
    if all(file.plain for file in files) and may_hold_open(len(files)):
        return ByteSource([file.path for file in files], setting=setting)
    return Pack(tuple(files), field, setting)
