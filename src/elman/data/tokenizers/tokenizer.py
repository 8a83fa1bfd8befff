"""A tokenizer: ids for the bytes of a text, of which each id stands for bytes of its own.

Whatever it is made of, a tokenizer here loses nothing. The bytes of the ids of a text, joined, are
the text. So a number of bits per byte means the same with every tokenizer. What a library cannot
encode (bytes that are not UTF-8) gets the tokens of single bytes, and so does the separator of
documents: no token crosses the border of two documents. NumPy only; no torch.

Shapes: n tokens.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from elman.base.errors import UserError, first_line
from elman.base.output import hold_back_errors
from elman.base.run_files import TOKENIZER
from elman.sections.training import MOST_LEARNED, SEPARATOR

Ids = npt.NDArray[np.int32]

EncodeTexts = Callable[[list[str]], list[Sequence[int]]]
"""From texts to the ids of each. It lets other threads run meanwhile."""

# What a tokenizer must give back as it was: spaces, digits, other scripts, code, ends of lines.
SAMPLE = (
    " Bytes  in,\tbytes out: 1,234.5\r\n\n    def f(x):\n        return x  # caf\u00e9 "
    "\u65e5\u672c\u8a9e \U0001f642 Cafe\u0301 \ufb01n\n"
).encode()


# Bytes that are not UTF-8 become characters that no text has.
_ESCAPED = "surrogateescape"
_NO_UTF8 = re.compile("([\udc80-\udcff]+)")


class Tokenizer:
    """Encodes text to ids and decodes ids to bytes.

    Args:
        name: What people call it: ``bpe``, the name of a file or of an encoding.
        token_bytes: The bytes of every id; empty for an id that is not used.
        encode_texts: Encodes text that is UTF-8 and has no separator in it.
        definition: A text from which
            :func:`~elman.data.tokenizers.opening.tokenizer_of_definition` makes the same tokenizer.
        where: The setting that named it, for error messages.
        kind: What the definition is.

    Raises:
        UserError: a byte has no token, or text does not come back as it was.

    Attributes:
        name: As given.
        definition: As given.
        kind: As given.
        fingerprint: SHA-256 of the definition.
        vocab_size: Number of ids.
        separator: The id of the byte between documents.
        lengths: How many bytes each id stands for: int64 [vocab_size].
    """

    def __init__(
        self,
        name: str,
        token_bytes: Sequence[bytes],
        encode_texts: EncodeTexts,
        definition: str,
        where: str,
        kind: str = TOKENIZER,
    ) -> None:
        self.name, self.definition, self._where, self.kind = name, definition, where, kind
        self.fingerprint = hashlib.sha256(definition.encode()).hexdigest()
        self.vocab_size = len(token_bytes)
        self.lengths = np.array([len(one) for one in token_bytes], dtype=np.int64)
        self._token_bytes, self._encode_texts = list(token_bytes), encode_texts
        self._byte_ids = self._ids_of_bytes()
        self.separator = int(self._byte_ids[SEPARATOR[0]])
        # Without its first space, too: some tokenizers put a space before a text that has none.
        with hold_back_errors():
            self.encode_all([SAMPLE, SAMPLE.lstrip()])

    def encode(self, data: bytes) -> Ids:
        """Return the ids of a text: int32 [n].

        Raises:
            UserError: they do not stand for its bytes, or the library cannot encode it.
        """
        return self.encode_all([data])[0]

    def encode_all(self, texts: Sequence[bytes]) -> list[Ids]:
        """Return the ids of each of several texts, which are encoded in one call."""
        parts = [list(_parts(text)) for text in texts]
        valid = [part for row in parts for part in row if isinstance(part, str)]
        with explained(f"{self._where}: cannot encode some text", "name another tokenizer"):
            encoded = iter(self._encode_texts(valid))
        found = []
        for text, row in zip(texts, parts, strict=True):
            ids = [
                np.asarray(next(encoded), dtype=np.int32)
                if isinstance(part, str)
                else self.ids_of_single_bytes(part)
                for part in row
            ]
            ids_n = np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)
            if self.decode(ids_n.tolist()) != text:
                raise self._inexact()
            found.append(ids_n)
        return found

    def ids_of_single_bytes(self, data: bytes) -> Ids:
        """Return one id for each byte."""
        return self._byte_ids[np.frombuffer(data, dtype=np.uint8)]

    def count_bytes(self, ids_n: npt.NDArray[np.integer]) -> int:
        """Return how many bytes the ids stand for."""
        return int(self.lengths[ids_n].sum())

    def token_bytes(self, ids_n: Iterable[int]) -> list[bytes]:
        """Return the bytes of each id."""
        return [self._token_bytes[one] for one in ids_n]

    def table(self) -> list[bytes]:
        """Return the bytes of every id."""
        return list(self._token_bytes)

    def decode(self, ids_n: Iterable[int]) -> bytes:
        """Return the bytes that the ids stand for."""
        return b"".join(self.token_bytes(ids_n))

    def bytes_per_token(self, data: bytes) -> float:
        """Return how many bytes of a text a token stands for, on average."""
        return len(data) / max(1, len(self.encode(data)))

    def _ids_of_bytes(self) -> Ids:
        first: dict[bytes, int] = {}
        for number, one in enumerate(self._token_bytes):
            if len(one) == 1:
                first.setdefault(one, number)
        missing = [byte for byte in range(256) if bytes([byte]) not in first]
        if missing:
            raise UserError(
                f"{self._where}: has no token for the byte 0x{missing[0]:02x}, so that it cannot "
                f"write every text; name a byte-level tokenizer, or type "
                f"data.tokenizer=bpe:8192"
            )
        return np.array([first[bytes([byte])] for byte in range(256)], dtype=np.int32)

    def _inexact(self) -> UserError:
        return UserError(
            f"{self._where}: changes text (its tokens do not stand for the text's own bytes), so "
            f"that bits per byte would mean something else; name a byte-level tokenizer, or type "
            f"data.tokenizer=bpe:8192"
        )


@contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Turn what a library of Rust raises into one line; its panics are no ``Exception``.

    Raises:
        UserError: says ``what`` was wrong, the library's reason, and the ``remedy``.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what} ({first_line(error)}); {remedy}") from None


def bytes_of_ids(known: Mapping[int, bytes], where: str) -> list[bytes]:
    """Return the bytes of every id up to the highest; none for an id that is not used.

    Raises:
        UserError: an id is negative, or so high that the model would be huge.
    """
    for number in (min(known), max(known)):
        if not 0 <= number < MOST_LEARNED:
            raise UserError(
                f"{where}: has the id {number:,}, and ids go from 0 to {MOST_LEARNED - 1:,}; "
                f"name another tokenizer"
            )
    return [known.get(number, b"") for number in range(max(known) + 1)]


def _parts(data: bytes) -> Iterator[str | bytes]:
    """Yield the documents of a text with the separators between them; bytes stay single."""
    for number, document in enumerate(data.split(SEPARATOR)):
        if number:
            yield SEPARATOR
        yield from _valid(document)


def _valid(document: bytes) -> Iterator[str | bytes]:
    """Yield what is UTF-8 as text, and what is not as bytes."""
    text = document.decode(errors=_ESCAPED)
    for number, part in enumerate(_NO_UTF8.split(text)):
        if part:
            yield part.encode(errors=_ESCAPED) if number % 2 else part


def utf8_decoder() -> codecs.IncrementalDecoder:
    """Return a decoder that holds a character back until all of its bytes are there."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
