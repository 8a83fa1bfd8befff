"""Decides how a file is read: raw, decompressed or as documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NoReturn

from elman.base.errors import UserError
from elman.data.documents import Piece, json_lines
from elman.data.json_text import JsonForm, form_of, json_documents
from elman.data.matching import Match, refuse
from elman.data.sniffing import (
    HEAD_BYTES,
    JSON_BLANKS,
    PARQUET,
    TAIL_BYTES,
    UNREADABLE_NAMES,
    compression_of,
    is_arrow,
    unreadable,
)
from elman.data.streams import Chunk, decoded_chunks
from elman.data.tables import arrow_documents, parquet_documents, refuse_without_pyarrow
from elman.sections.training import DataFormat

Content = Literal["raw", "jsonl", "json", "parquet", "arrow"]

_JSON_LINES = (".jsonl", ".ndjson", ".jsonlines")
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
        if self.content == "arrow":
            return arrow_documents(self.path, field, where)
        chunks = decoded_chunks(self.path, self.compression, where)
        if self.content == "jsonl":
            return json_lines(chunks, field, where)
        if self.content == "json":
            return json_documents(chunks, field, where)
        return (Piece(data, 0, consumed) for data, consumed in chunks)


def inner_suffix(file: SourceFile) -> str:
    """Return the ending of a file's name, in lower case, without that of its compression."""
    stem, suffix = os.path.splitext(os.path.basename(file.path).lower())
    return os.path.splitext(stem)[1] if suffix in _COMPRESSED else suffix


class OtherKindError(UserError):
    """A file is whole, but of a kind that elman does not read, or not as the settings say."""


def look(match: Match, format_: DataFormat, field: str, setting: str) -> SourceFile:
    """Return how to read a file.

    Args:
        match: The file.
        format_: As ``data.format``.
        field: As ``data.field``.
        setting: The setting that named it, for error messages.

    Raises:
        OtherKindError: elman does not read its kind.
        UserError: it cannot be opened, or is damaged.
    """
    path, status = match.path, match.status
    compression: str | None = None
    content: Content = "raw"
    if format_ != "raw":
        try:
            with open(path, "rb", buffering=0) as raw:
                head = raw.read(HEAD_BYTES)
                tail = os.pread(raw.fileno(), TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        except OSError as error:
            refuse(path, setting, error)
        compression, content = _Look(path, format_, field, setting).at(head, tail)
    return SourceFile(path, status.st_size, status.st_mtime_ns, compression, content)


@dataclass(frozen=True)
class _Look:
    """Inspects one file to find how to read it."""

    path: str
    format: DataFormat
    field: str
    setting: str

    def at(self, head: bytes, tail: bytes) -> tuple[str | None, Content]:
        """Return its compression and content."""
        compression = compression_of(head)
        stem, suffix = os.path.splitext(self.path.lower())
        named = _COMPRESSED.get(suffix)
        if compression is None:
            if named is not None:
                raise UserError(
                    self._or_raw(
                        f"named {suffix}, but it does not begin like a {named} file; "
                        f"download it again"
                    )
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
        if is_arrow(head):
            return self._arrow(inside)
        for kind, ending in (("Parquet", ".parquet"), ("Arrow", ".arrow")):
            said = f"{self._where}: not {kind}; it does not begin like {kind}"
            if suffix == ending and self.format in ("auto", kind.lower()):
                raise UserError(f"{said}; download it again")
            if self.format == kind.lower():
                raise OtherKindError(f"{said}; drop {self._section}.format")
        if found := unreadable(head, tail) or UNREADABLE_NAMES.get(suffix):
            self._refuse(f"{found.name}{inside}; {found.advice}")
        if self.format in ("json", "jsonl"):
            return self.format
        if self.format == "auto" and suffix in _JSON_LINES:
            return "json" if head.lstrip(JSON_BLANKS).startswith(b"[") else "jsonl"
        if self.format == "auto" and suffix == ".json":
            return self._json(compression)
        return "raw"

    def _json(self, compression: str | None) -> Content:
        """Return the form of a file named .json, which may be lines, an array, or neither."""
        form = form_of(self._chunks(compression), self.field)
        if form is JsonForm.LINES:
            return "jsonl"
        if form is JsonForm.DOCUMENTS:
            return "json"
        raise OtherKindError(
            f"{self._where}: {form.value}; save its texts as an array of objects or as JSON lines, "
            f"or type {self._section}.format=text to read it as plain text"
        )

    def _arrow(self, inside: str) -> Content:
        if inside:
            self._refuse(f"Arrow{inside}; unpack it")
        if self.format not in ("auto", "arrow"):
            self._refuse(f"Arrow, not {self.format}; drop {self._section}.format")
        refuse_without_pyarrow(self._where, "Arrow")
        return "arrow"

    def _parquet(self, head: bytes, tail: bytes, inside: str) -> Content:
        if inside:
            self._refuse(f"Parquet{inside}; unpack it")
        if self.format not in ("auto", "parquet"):
            self._refuse(f"Parquet, not {self.format}; drop {self._section}.format")
        if not tail.endswith(PARQUET):
            raise UserError(
                f"{self._where}: cannot be read as Parquet: it ends too early; download it again"
            )
        refuse_without_pyarrow(self._where, "Parquet")
        return "parquet"

    def _refuse(self, what: str) -> NoReturn:
        raise OtherKindError(self._or_raw(what))

    def _or_raw(self, what: str) -> str:
        return (
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
