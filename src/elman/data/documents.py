"""Documents of a file, in pieces of joined text, and how JSON lines hold them.

Memory use is limited to a chunk and the longest document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from elman.base.errors import UserError, did_you_mean, first_line
from elman.data.streams import Chunk
from elman.sections.training import SEPARATOR

LONGEST_LINE = 2**30
"""Most bytes in a document's line; the whole line must fit in memory."""
_SHOWN_NAMES = 8
# Numbers are not read as text. Python refuses whole numbers of very many digits, but not floats.
JSON = json.JSONDecoder(parse_int=float)
"""Parses JSON whose numbers do not matter."""


class Piece(NamedTuple):
    """A piece of text: whole documents, joined, or bytes of a file without documents.

    Attributes:
        data: The bytes.
        documents: Number of documents; 0 if the file is one text.
        consumed: Bytes of the file that were read up to the end of this piece.
        halves: Number of documents with half of a surrogate pair, which UTF-8 does not allow.
        blank: Number of documents that are empty or hold nothing but blanks.
        fields: Fields of one of the documents, for an error about those that were read.
    """

    data: bytes
    documents: int
    consumed: int
    halves: int = 0
    blank: int = 0
    fields: tuple[str, ...] = ()


class JoinedDocuments:
    """Collects documents for one piece."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._halves = self._blank = self.n_bytes = 0
        self._fields: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: str, record: Any) -> None:
        """Add the text of one record."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            self._halves += 1
            data = text.encode(errors="surrogatepass")
        self._blank += not text.strip()
        self._texts.append(data)
        self.n_bytes += len(data)
        if not self._fields and isinstance(record, dict):
            self._fields = tuple(record)

    def piece(self, consumed: int) -> Piece:
        """Return the piece, which was read from so many bytes of the file."""
        joined = SEPARATOR.join(self._texts)
        return Piece(joined, len(self), consumed, self._halves, self._blank, self._fields)


def json_lines(chunks: Iterator[Chunk], field: str, where: str) -> Iterator[Piece]:
    """Yield the documents of JSON lines; blank lines hold no document, but count as lines.

    Args:
        chunks: The file's text.
        field: Key of the text in each line's object. If no key has that name, a dot descends into
            an inner object.
        where: The setting and the file, for error messages.

    Raises:
        UserError: a line is not a JSON object, or its field is missing or not text.
    """
    number, held, held_bytes = 1, [b""], 0
    consumed = 0
    for data, consumed in chunks:
        first, *rest = data.split(b"\n")
        held.append(first)
        held_bytes += len(first)
        if held_bytes > LONGEST_LINE:
            raise UserError(
                f"{where}, line {number}: longer than 1 GiB; a file of JSON lines has one object "
                f"in each line"
            )
        if rest:
            lines = [b"".join(held), *rest[:-1]]
            yield from _json_piece(lines, number, field, where, consumed)
            number += len(lines)
            held, held_bytes = [rest[-1]], len(rest[-1])
    yield from _json_piece([b"".join(held)], number, field, where, consumed)


def _json_piece(
    lines: list[bytes], first: int, field: str, where: str, consumed: int
) -> Iterator[Piece]:
    """Yield one piece with the documents of these lines; nothing if there are none."""
    found = JoinedDocuments()
    for number, line in enumerate(lines, first):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line and not line.isspace():
            place = f"{where}, line {number}"
            record = _parsed(line, place)
            found.add(field_of(record, field, place), record)
    if found:
        yield found.piece(consumed)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = JSON.decode(line.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start + 1} of it)") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({first_line(error)})") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: {type_word(record)}, but each line must be a JSON object")
    return record


def field_of(record: dict[str, Any], field: str, where: str) -> str:
    """Return the text in a record's field.

    Args:
        record: A JSON object.
        field: As :func:`json_lines`.
        where: The place of the record, for error messages.

    Raises:
        UserError: there is no such field, or it holds no text.
    """
    node: Any = record
    if field in record:
        node = record[field]
    else:
        for name in field.split("."):
            if not isinstance(node, dict) or name not in node:
                raise UserError(no_field(where, field, list(record)))
            node = node[name]
    if not isinstance(node, str):
        raise UserError(f"{where}: field {field} is {type_word(node)}, not text")
    return node


def no_field(where: str, field: str, names: list[str]) -> str:
    """Return the error for a field that does not exist, with those that do."""
    setting = where.split(".", 1)[0] + ".field"
    return (
        f"{where}: no field {field}{did_you_mean(field, names)}; it has: {listed_names(names)}; "
        f"type {setting}=<name>"
    )


def listed_names(names: Sequence[str]) -> str:
    """Return the first few names, with commas."""
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return shown or "nothing"


def type_word(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if value is None:
        return "null"
    words = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return words.get(type(value), "an object" if isinstance(value, dict) else "text")
