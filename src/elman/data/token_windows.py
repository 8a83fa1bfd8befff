"""Windows of tokens: encoded when they are needed, from the bytes of a text that stays as it is.

A text is encoded in pieces. Where a piece ends follows from the text and from where it began, never
from how much was read ahead, how many threads encode, or how long a window is. So a window that
begins at a byte has the same tokens in every run, and a stream goes on exactly where it was.

A piece ends at the first safe cut behind its 1,024 bytes: before a space between two words, behind
an end of line, or behind the separator of documents. There no usual tokenizer joins the two sides,
and the tokens are those of the whole text. If there is none within 128 bytes, as in a text without
spaces, a piece ends with a character. NumPy only; no torch.

Shapes: b rows, n tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from elman.base.closing import Closing
from elman.base.cpus import usable_cpus
from elman.data.files import ByteSource, Offsets
from elman.data.tokenizers.tokenizer import Ids, Tokenizer
from elman.sections.training import SEPARATOR

PIECE_BYTES = 1024
SEARCHED_BYTES = 128
# Behind a separator or an end of line, or before a single space between two words.
_SAFE = re.compile(rb"(?<=\x1e)|(?<=\n)(?=[^\s])|(?<=[^\s\x1e])(?= [^\s])")
_LONGEST_CHARACTER = 4
_THREADS_LIMIT, _CPUS_FOR_A_THREAD = 8, 2


def encoding_threads() -> int:
    """Return how many threads encode: one for every two CPUs of this process, 1 to 8."""
    return max(1, min(_THREADS_LIMIT, len(usable_cpus()) // _CPUS_FOR_A_THREAD))


def safe_cut(text: bytes, at: int) -> int:
    """Return the first safe cut of a text at ``at`` or behind it, as the module describes it.

    Args:
        text: With :data:`SEARCHED_BYTES` more behind ``at``, unless it ends before.
        at: From 1 to the length of the text.
    """
    found = _SAFE.search(text, at, min(len(text), at + SEARCHED_BYTES))
    if found is not None:
        return found.start()
    for place in range(at, min(len(text), at + _LONGEST_CHARACTER)):
        if text[place] & 0xC0 != 0x80:  # no byte inside a character of UTF-8
            return place
    return min(at, len(text))


@dataclass
class Cursor:
    """A place in a text that is read piece by piece.

    Args:
        position: The byte at which the next piece begins.
        skip: How many tokens of that piece were read already.
    """

    position: int
    skip: int = 0


class TokenReader(Closing):
    """Reads tokens of a text from any byte on, with several threads.

    Args:
        source: The text.
        size: How many of its first bytes are read.
        tokenizer: Encodes them.
        threads: How many threads encode; None is :func:`encoding_threads`.
    """

    def __init__(
        self, source: ByteSource, size: int, tokenizer: Tokenizer, threads: int | None = None
    ) -> None:
        self._source, self._size, self._tokenizer = source, size, tokenizer
        self._threads = threads or encoding_threads()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="elman-tokens")
        text = source.read(0, min(size, 2**16)).tobytes()
        # About: the tokens of a window do not depend on it.
        self.bytes_per_token = tokenizer.bytes_per_token(text)
        self._piece_tokens = max(1.0, PIECE_BYTES / self.bytes_per_token)

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def gather(self, offsets_b: Offsets, length: int) -> Ids:
        """Return windows of ``length`` tokens: int32 [b, n].

        A window begins at the first safe cut at its byte or behind it, and is encoded from there.
        Behind the last byte the text goes on with a separator and its first byte.

        Raises:
            UserError: a file became shorter, or the tokenizer changes the text.
        """
        cursors = [Cursor(self.start(int(offset))) for offset in offsets_b]
        return self.read(cursors, length)

    def start(self, offset: int) -> int:
        """Return the first safe cut at a byte of the text or behind it."""
        if offset == 0:
            return 0
        text = self._source.read(
            offset - 1, min(SEARCHED_BYTES + _LONGEST_CHARACTER, self._size - offset + 1)
        )
        return offset - 1 + safe_cut(text.tobytes(), 1)

    def read(self, cursors: Sequence[Cursor], length: int, overlap: int = 0) -> Ids:
        """Return the tokens behind each cursor: int32 [b, n]; the cursors move on.

        Args:
            cursors: Where rows begin.
            length: n.
            overlap: How many of the last tokens the next call returns again.
        """
        groups = np.array_split(np.arange(len(cursors)), min(self._threads, len(cursors)))
        jobs = [
            self._pool.submit(self._rows, [cursors[row] for row in group], length, overlap)
            for group in groups
        ]
        return np.concatenate([job.result() for job in jobs])

    def _rows(self, cursors: Sequence[Cursor], length: int, overlap: int) -> Ids:
        rows = [_Row(cursor) for cursor in cursors]
        while short := [row for row in rows if row.tokens < length]:
            for row in short:
                self._read_ahead(row, length)
            encoded = iter(self._tokenizer.encode_all([piece for r in short for piece in r.pieces]))
            for row in short:
                row.take([next(encoded) for _ in row.pieces])
        return np.stack([row.window(length, overlap) for row in rows])

    def _read_ahead(self, row: _Row, length: int) -> None:
        """Read about as many pieces as a row lacks."""
        count = int((length - row.tokens) / self._piece_tokens) + 1
        row.pieces = []
        while len(row.pieces) < count:
            if row.position >= self._size:
                row.add(SEPARATOR, behind=0)
                continue
            pieces = count - len(row.pieces)
            most = (PIECE_BYTES + SEARCHED_BYTES) * pieces + _LONGEST_CHARACTER
            text = self._source.read(row.position, min(most, self._size - row.position)).tobytes()
            ended = row.position + len(text) == self._size
            for piece in pieces_of(text, pieces, ended=ended):
                row.add(piece, behind=row.position + len(piece))


def pieces_of(text: bytes, count: int, *, ended: bool) -> list[bytes]:
    """Return the first pieces of a text.

    Args:
        text: The text, from where a piece begins.
        count: The most pieces to return.
        ended: Whether nothing follows this text, so that the last piece may be short.
    """
    found: list[bytes] = []
    at = 0
    while len(found) < count and at < len(text):
        if len(text) - at <= PIECE_BYTES:
            if ended:
                found.append(text[at:])
            break
        if not ended and len(text) - at < PIECE_BYTES + SEARCHED_BYTES + _LONGEST_CHARACTER:
            break
        end = safe_cut(text, at + PIECE_BYTES)
        found.append(text[at:end])
        at = end
    return found


class _Row:
    """A row that is being read."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor, self.position = cursor, cursor.position
        self.tokens = -cursor.skip
        self.pieces: list[bytes] = []
        # The byte at which each piece begins, that behind the last one, and their tokens.
        self._begins: list[int] = []
        self._ids: list[Ids] = []

    def add(self, piece: bytes, *, behind: int) -> None:
        """Add a piece to encode; ``behind`` is where the next one begins."""
        self.pieces.append(piece)
        self._begins.append(self.position)
        self.position = behind

    def take(self, encoded: Sequence[Ids]) -> None:
        """Take the tokens of the pieces."""
        self._ids += encoded
        self.tokens += sum(len(ids) for ids in encoded)

    def window(self, length: int, overlap: int) -> Ids:
        """Return the first tokens behind the cursor, and let it move on."""
        skip, cursor = self._cursor.skip, self._cursor
        ids_n = np.concatenate(self._ids)[skip : skip + length]
        left = skip + length - overlap
        for begin, ids in zip(self._begins, self._ids, strict=True):
            cursor.position, cursor.skip = begin, left
            if left < len(ids):
                return ids_n
            left -= len(ids)
        cursor.position, cursor.skip = self.position, left
        return ids_n
