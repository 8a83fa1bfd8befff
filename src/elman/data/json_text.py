"""Reads the documents of a JSON array, or of JSON objects one after another, in pieces.

Memory use is limited to a few chunks and the longest document.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from enum import Enum
from typing import Any, NoReturn

from elman.base.errors import UserError
from elman.data.documents import JSON, LONGEST_LINE, JoinedDocuments, Piece, field_of, type_word
from elman.data.sniffing import JSON_BLANKS
from elman.data.streams import Chunk

# A file named .json may hold one document or many; this many bytes are inspected to decide.
_LONGEST_FIRST = 16 * 2**20
_BLANKS = " \t\r\n"
# Texts of a piece; the last characters of a part may begin what the next part ends.
_PIECE_BYTES = 4 * 2**20
_CUT_OFF = 16


class JsonForm(Enum):
    """What a file named .json holds."""

    LINES = "JSON lines"
    DOCUMENTS = "an array, or objects one after another"
    OBJECT = "one JSON object, not documents"
    OTHER = "not JSON"


def form_of(chunks: Iterator[Chunk], field: str) -> JsonForm:
    """Return what a file holds, by its first bytes.

    Args:
        chunks: The file's text.
        field: As ``data.field``: an object alone that has it is a document.
    """
    head = b""
    for data, _ in chunks:
        head = (head + data).lstrip(JSON_BLANKS)
        if head.startswith(b"["):
            return JsonForm.DOCUMENTS
        if head and not head.startswith(b"{"):
            return JsonForm.OTHER
        first, _, second = head.partition(b"\n")
        if second.lstrip().startswith(b"{") and _is_object(first):
            return JsonForm.LINES
        if len(head) > _LONGEST_FIRST:
            break
    return _form_of_object(head.decode(errors="replace"), field)


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(JSON.decode(text.decode()), dict)
    except (ValueError, RecursionError):
        return False


def _form_of_object(head: str, field: str) -> JsonForm:
    """Return the form of a text that begins with an object."""
    try:
        record, end = JSON.raw_decode(head)
    except RecursionError:
        return JsonForm.OBJECT
    except ValueError:
        return JsonForm.OBJECT if len(head) > _LONGEST_FIRST else JsonForm.OTHER
    rest = head[end:].lstrip(_BLANKS)
    if rest:
        return JsonForm.DOCUMENTS if rest.startswith("{") else JsonForm.OTHER
    try:
        field_of(record, field, "")
    except UserError:
        return JsonForm.OBJECT
    return JsonForm.DOCUMENTS


def json_documents(chunks: Iterator[Chunk], field: str, where: str) -> Iterator[Piece]:
    """Yield the documents of a JSON array, or of objects one after another.

    Args:
        chunks: The file's text.
        field: Key of the text in each object, as for JSON lines. An array of texts needs none.
        where: The setting and the file, for error messages.

    Raises:
        UserError: the text is not JSON, or an element is no document.
    """
    text = _Text(chunks, where)
    found = JoinedDocuments()
    for number, record in enumerate(_elements(text), 1):
        found.add(_text_of(record, field, f"{where}, document {number}"), record)
        if found.n_bytes >= _PIECE_BYTES:
            yield found.piece(text.consumed)
            found = JoinedDocuments()
    if found:
        yield found.piece(text.consumed)


def _text_of(record: Any, field: str, where: str) -> str:
    if isinstance(record, str) and field == "text":
        return record
    if not isinstance(record, dict):
        raise UserError(f"{where}: {type_word(record)}, but each document must be a JSON object")
    return field_of(record, field, where)


def _elements(text: _Text) -> Iterator[Any]:
    """Yield the elements of the array that a text is, or its objects."""
    if text.next_mark() != "[":
        while text.next_mark():
            yield text.value()
        return
    text.skip()
    if text.next_mark() == "]":
        text.skip()
    else:
        yield text.value()
        while (mark := text.next_mark()) == ",":
            text.skip()
            yield text.value()
        if mark != "]":
            text.refuse("its array is cut off" if not mark else "',' or ']' is missing")
        text.skip()
    if text.next_mark():
        text.refuse("something follows the end of its array")


class _Text:
    """A file's text, of which only the part that is being read is held.

    Attributes:
        consumed: Bytes of the file that were read.
    """

    def __init__(self, chunks: Iterator[Chunk], where: str) -> None:
        self._chunks, self._where = chunks, where
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._held, self._at = "", 0
        self._line = 1  # of the first character that is held
        self.consumed = 0
        self._ended = False

    def next_mark(self) -> str:
        """Return the next character that is no blank; empty at the end."""
        while True:
            while self._at < len(self._held):
                if self._held[self._at] not in _BLANKS:
                    return self._held[self._at]
                self._at += 1
            if not self._more():
                return ""

    def skip(self) -> None:
        """Pass over one character."""
        self._at += 1

    def value(self) -> Any:
        """Return the JSON value that begins here."""
        if not self.next_mark():
            self.refuse("its array is cut off")
        while True:
            try:
                found, self._at = JSON.raw_decode(self._held, self._at)
            except RecursionError:
                self.refuse("nested too deeply")
            except json.JSONDecodeError as error:
                if not self._may_be_cut_off(error) or not self._doubled():
                    self._at = error.pos
                    self.refuse(f"not JSON ({error.msg})")
            else:
                return found

    def refuse(self, what: str) -> NoReturn:
        """Raise UserError for what stands here."""
        line = self._line + self._held.count("\n", 0, self._at)
        raise UserError(f"{self._where}, line {line}: {what}")

    def _may_be_cut_off(self, error: json.JSONDecodeError) -> bool:
        unended = error.msg.startswith("Unterminated string")
        return unended or error.pos > len(self._held) - _CUT_OFF

    def _doubled(self) -> bool:
        """Hold twice as much: a value is then parsed a few times at most, however long it is."""
        wanted = 2 * (len(self._held) - self._at)
        if wanted > 2 * LONGEST_LINE:
            self.refuse("a document longer than 1 GiB")
        grew = False
        while len(self._held) - self._at < wanted and self._more():
            grew = True
        return grew

    def _more(self) -> bool:
        """Hold the next part of the file, and forget what was read."""
        if self._ended:
            return False
        data, self.consumed = next(self._chunks, Chunk(b"", self.consumed))
        self._ended = not data
        self._line += self._held.count("\n", 0, self._at)
        try:
            more = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError:
            self._held = self._held[self._at :]
            self._at = len(self._held)
            self.refuse("not UTF-8 from here on")
        self._held, self._at = self._held[self._at :] + more, 0
        return True
