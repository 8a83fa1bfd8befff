"""Decides which files a run reads, and how: raw, decompressed or as documents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from elman.base.errors import UserError
from elman.data.documents import Piece, json_documents, parquet_documents, refuse_without_pyarrow
from elman.data.files import found, refuse
from elman.data.sniffing import (
    HEAD_BYTES,
    PARQUET,
    TAIL_BYTES,
    UNREADABLE_NAMES,
    compression_of,
    unreadable,
)
from elman.data.streams import Chunk, decoded_chunks
from elman.sections.training import DataFormat

Content = Literal["raw", "jsonl", "parquet"]

_JSON_LINES = (".jsonl", ".ndjson", ".jsonlines")
# A file named .json may hold one document or many; this many bytes are inspected to decide.
_LONGEST_FIRST_LINE = 16 * 2**20
_COMPRESSED = {
    ".gz": "gz",
    ".gzip": "gz",
    ".zst": "zst",
    ".zstd": "zst",
    ".xz": "xz",
    ".bz2": "bz2",
}


@dataclass(frozen=True)
class SourceFile:
    """One file, and how to read it.

    Args:
        path: Absolute path.
        bytes: Its size.
        modified_ns: When it was last written, in nanoseconds since 1970.
        compression: ``gz``, ``zst``, ``xz``, ``bz2`` or None.
        content: The decompressed content: raw bytes or a kind of documents.
    """

    path: str
    bytes: int
    modified_ns: int
    compression: str | None
    content: Content

    @property
    def plain(self) -> bool:
        """Whether it is read in place as raw bytes."""
        return self.compression is None and self.content == "raw"

    def pieces(self, field: str, setting: str) -> Iterator[Piece]:
        """Yield its text.

        Args:
            field: The field with a document's text, see :mod:`elman.data.documents`.
            setting: The setting that named the file, for error messages.

        Raises:
            UserError: it is damaged, or its content is not of the expected kind.
        """
        where = f"{setting}={self.path}"
        if self.content == "parquet":
            return parquet_documents(self.path, self.bytes, field, where)
        chunks = decoded_chunks(self.path, self.compression, where)
        if self.content == "jsonl":
            return json_documents(chunks, field, where)
        return (Piece(data, 0, consumed) for data, consumed in chunks)


def plan(
    names: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format_: DataFormat,
    setting: str,
) -> list[SourceFile]:
    """Return the files in the order of reading, which is the order of their absolute paths.

    Args:
        names: As :class:`~elman.data.files.ByteSource` takes them.
        format_: As ``data.format``.
        setting: The setting that named them, for error messages.

    Raises:
        UserError: a file is missing or cannot be opened, or elman cannot read its kind.
    """
    return [_source(path, status, format_, setting) for path, status in found(names, setting)]


def _source(path: str, status: os.stat_result, format_: DataFormat, setting: str) -> SourceFile:
    compression: str | None = None
    content: Content = "raw"
    if format_ != "raw":
        try:
            with open(path, "rb", buffering=0) as raw:
                head = raw.read(HEAD_BYTES)
                tail = os.pread(raw.fileno(), TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        except OSError as error:
            refuse(path, setting, error)
        compression, content = _Look(path, format_, setting).at(head, tail)
    return SourceFile(path, status.st_size, status.st_mtime_ns, compression, content)


@dataclass(frozen=True)
class _Look:
    """Inspects one file to find how to read it."""

    path: str
    format: DataFormat
    setting: str

    def at(self, head: bytes, tail: bytes) -> tuple[str | None, Content]:
        """Return its compression and content."""
        compression = compression_of(head)
        stem, suffix = os.path.splitext(self.path.lower())
        named = _COMPRESSED.get(suffix)
        if compression is None:
            if named is not None:
                self._refuse(
                    f"named {suffix}, but it does not begin like a {named} file; download it again"
                )
            return None, self._content(self.path, head, tail, None)
        inner = _first_bytes(self._chunks(compression), HEAD_BYTES)
        if (twice := compression_of(inner)) is not None:
            self._refuse(f"{twice} inside {compression}; unpack it once")
        inner_name = stem if named is not None else self.path
        return compression, self._content(inner_name, inner, b"", compression)

    def _chunks(self, compression: str | None) -> Iterator[Chunk]:
        return decoded_chunks(self.path, compression, self._where)

    def _content(self, name: str, head: bytes, tail: bytes, compression: str | None) -> Content:
        inside = f" inside {compression}" if compression else ""
        if head.startswith(PARQUET):
            return self._parquet(head, tail, inside)
        suffix = os.path.splitext(name.lower())[1]
        if self.format == "parquet" or (self.format == "auto" and suffix == ".parquet"):
            raise UserError(f"{self._where}: not Parquet; it does not begin like a Parquet file")
        if kind := unreadable(head, tail) or UNREADABLE_NAMES.get(suffix):
            self._refuse(f"{kind.name}{inside}; {kind.advice}")
        if self.format == "jsonl":
            return "jsonl"
        if self.format == "auto" and suffix in _JSON_LINES:
            return "jsonl"
        if self.format == "auto" and suffix == ".json" and _is_lines(self._chunks(compression)):
            return "jsonl"
        return "raw"

    def _parquet(self, head: bytes, tail: bytes, inside: str) -> Content:
        if inside:
            self._refuse(f"Parquet{inside}; unpack it")
        if self.format not in ("auto", "parquet"):
            self._refuse(f"Parquet, not {self.format}; drop {self._section}.format")
        if not tail.endswith(PARQUET):
            raise UserError(
                f"{self._where}: cannot be read as Parquet: it ends too early; download it again"
            )
        refuse_without_pyarrow(self._where)
        return "parquet"

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(
            f"{self._where}: {what}, or type {self._section}.format=raw to read its bytes as "
            f"they are"
        )

    @property
    def _where(self) -> str:
        return f"{self.setting}={self.path}"

    @property
    def _section(self) -> str:
        return self.setting.split(".", 1)[0]


def _first_bytes(chunks: Iterator[Chunk], wanted: int) -> bytes:
    """Return the first bytes; fewer if the file is shorter."""
    head = b""
    for data, _ in chunks:
        head += data
        if len(head) >= wanted:
            break
    return head[:wanted]


def _is_lines(chunks: Iterator[Chunk]) -> bool:
    """Whether a .json file holds JSON lines: one whole object, followed by another."""
    text = b""
    for data, _ in chunks:
        text = (text + data).lstrip()
        first, _, second = text.partition(b"\n")
        if second.lstrip():
            try:
                return isinstance(json.loads(first), dict) and second.lstrip().startswith(b"{")
            except ValueError:
                return False
        if len(text) > _LONGEST_FIRST_LINE:
            break
    return False
