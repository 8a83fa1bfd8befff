"""The bytes to score: validation windows, and windows or chunks of any text.

With a tokenizer the same bytes are scored: :func:`as_tokens` encodes the predicted bytes of each
row, and the byte before them is a token of its own. So the bits of a row are those of the same
bytes given the same byte, whatever the tokens are. NumPy only; no torch.

Shapes: b rows, at most B; T predicted bytes in a row (``window``). A row has T + 1 bytes, so that
every predicted byte has its predecessor in the row. n tokens of the longest row of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from elman.base.errors import UserError
from elman.data.files import Bytes, ByteSource, Offsets
from elman.data.text import Data
from elman.data.token_windows import pieces_of
from elman.data.tokenizers.tokenizer import Ids, Tokenizer
from elman.sections.training import SEPARATOR

_READ_AHEAD = 2**18

NO_TOKEN = -1
"""Behind the tokens of a row that is shorter than the longest one of its batch."""


class TokenRows(NamedTuple):
    """Rows of tokens to score.

    Args:
        ids_bn: int32 [b, n]; every token of a row but the first is predicted.
        n_bytes: How many bytes the predicted tokens stand for.
        read_b: How many more of the first tokens of each row are read and not predicted; None if
            there are none.
    """

    ids_bn: Ids
    n_bytes: int
    read_b: Ids | None = None


def as_tokens(batches: Iterable[Bytes], tokenizer: Tokenizer | None) -> Iterator[Bytes | TokenRows]:
    """Yield rows of bytes as tokens; as they are without a tokenizer.

    Raises:
        UserError: the tokenizer changes the text.
    """
    for rows in batches:
        yield rows if tokenizer is None else _tokens_of(rows, tokenizer)


def _tokens_of(rows: Bytes, tokenizer: Tokenizer) -> TokenRows:
    encoded = tokenizer.encode_all([row[1:].tobytes() for row in rows])
    firsts = tokenizer.ids_of_single_bytes(rows[:, 0].tobytes())
    joined = [np.append(first, ids) for first, ids in zip(firsts, encoded, strict=True)]
    return TokenRows(_padded(joined), rows[:, 1:].size)


def _padded(rows: Sequence[Ids]) -> Ids:
    ids_bn = np.full((len(rows), max(map(len, rows))), NO_TOKEN, dtype=np.int32)
    for row, ids in zip(ids_bn, rows, strict=True):
        row[: len(ids)] = ids
    return ids_bn


def validation_windows(data: Data, window: int, sample_bytes: int) -> Offsets:
    """Return the offsets of the validation rows, which are the same in every run on this data.

    There are ceil(sample_bytes / T) rows of T + 1 bytes, evenly spaced over the held-out tail
    without overlap, or fewer if not all fit.
    """
    row = window + 1
    count = min(-(-sample_bytes // window), data.val_bytes // row)
    last = data.val_bytes - row
    places = [index * last // max(count - 1, 1) for index in range(count)]
    return data.train_bytes + np.array(places, dtype=np.int64)


def validation_batches(
    data: Data, window: int, sample_bytes: int, batch_size: int
) -> Iterator[Bytes]:
    """Yield the rows of :func:`validation_windows` in batches: uint8 [b, T+1]."""
    offsets = validation_windows(data, window, sample_bytes)
    for first in range(0, len(offsets), batch_size):
        yield data.source.gather(offsets[first : first + batch_size], window + 1)


def scoring_batches(
    source: ByteSource, window: int, batch_size: int, max_bytes: int | None = None
) -> Iterator[Bytes]:
    """Yield windows in which every byte but the first is predicted exactly once: uint8 [b, t+1].

    Neighboring windows share one byte: the last predicted byte is the first input of the next
    window. t is T, except in the last batch, which has one row with the remaining bytes.

    Args:
        source: Bytes to score.
        window: T.
        batch_size: B, the most rows a batch has.
        max_bytes: Predict at most this many bytes, in evenly spaced windows; None means all.

    Raises:
        UserError: the source has only one byte, so there is nothing to predict.
    """
    targets = _targets(source)
    limit = targets if max_bytes is None else min(targets, max_bytes)
    length = min(window, limit)
    rest = targets % length if limit == targets else 0
    return _windows(source, length, (limit // length, targets // length), rest, batch_size)


def _windows(
    source: ByteSource, length: int, chosen_of: tuple[int, int], rest: int, batch_size: int
) -> Iterator[Bytes]:
    """Yield the chosen windows of ``length`` bytes, then the shorter rest."""
    chosen, whole = chosen_of
    for first in range(0, chosen, batch_size):
        indices = range(first, min(first + batch_size, chosen))
        offsets = [index * whole // chosen * length for index in indices]
        yield source.gather(np.array(offsets, dtype=np.int64), length + 1)
    if rest:
        yield source.read(whole * length, rest + 1)[None]


def contiguous_chunks(
    source: ByteSource, chunk_size: int, max_bytes: int | None = None
) -> Iterator[Bytes]:
    """Yield one text in order, to score it with carried state: uint8 [1, t+1].

    Every byte but the first is predicted exactly once. ``max_bytes`` limits this to the first bytes
    of the text. t is T, except in the last chunk, which has the remaining bytes.

    Raises:
        UserError: the source has only one byte, so there is nothing to predict.
    """
    targets = _targets(source)
    end = targets if max_bytes is None else min(targets, max_bytes)
    chunks = ((start, min(chunk_size, end - start)) for start in range(0, end, chunk_size))
    return (source.read(start, length + 1)[None] for start, length in chunks)


def contiguous_tokens(
    source: ByteSource, chunk_size: int, tokenizer: Tokenizer, max_bytes: int | None = None
) -> Iterator[TokenRows]:
    """Yield one text in order, as :func:`contiguous_chunks` does, in chunks of T tokens.

    It is encoded piece by piece, as :mod:`elman.data.token_windows` says. The first byte is a token
    of its own, and the last token of a chunk is the first of the next one.

    Raises:
        UserError: as :func:`contiguous_chunks`, or the tokenizer changes the text.
    """
    targets = _targets(source)
    end = 1 + (targets if max_bytes is None else min(targets, max_bytes))
    ids_n, at = tokenizer.ids_of_single_bytes(source.read(0, 1).tobytes()), 1
    while at < end or len(ids_n) > 1:
        while len(ids_n) <= chunk_size and at < end:
            text = source.read(at, min(_READ_AHEAD, end - at)).tobytes()
            pieces = pieces_of(text, len(text), ended=at + len(text) == end)
            at += sum(map(len, pieces))
            ids_n = np.concatenate([ids_n, *tokenizer.encode_all(pieces)])
        chunk_n, ids_n = ids_n[: chunk_size + 1], ids_n[chunk_size:]
        yield TokenRows(chunk_n[None], tokenizer.count_bytes(chunk_n[1:]))


def document_batches(
    source: ByteSource, window: int, batch_size: int, tokenizer: Tokenizer | None
) -> Iterator[TokenRows]:
    """Yield the documents of a text, each by itself, in windows that read at most T tokens.

    These are the windows of ``loglikelihood_rolling`` of EleutherAI's lm-eval with ``max_length``
    T. The first one of a document begins with the separator. The last one ends with the document,
    and reads tokens before its own predictions until it has T.

    Args:
        source: Bytes to score; the separators in it are not predicted.
        window: T.
        batch_size: B, the most rows a batch has.
        tokenizer: Encodes a document; None if a token is a byte.

    Raises:
        UserError: there is nothing to predict, or the tokenizer changes the text.
    """
    rows = (row for one in _documents(source) for row in _rolling(_ids(one, tokenizer), window))
    empty = True
    while batch := list(islice(rows, batch_size)):
        read_b = np.array([read for _, read in batch], dtype=np.int32)
        new = np.concatenate([ids[1 + read :] for ids, read in batch])
        n_bytes = len(new) if tokenizer is None else tokenizer.count_bytes(new)
        yield TokenRows(_padded([ids for ids, _ in batch]), n_bytes, read_b)
        empty = False
    if empty:
        raise UserError(
            f"{source.setting}={source.label}: has no documents, only bytes 0x1e; name text"
        )


def _documents(source: ByteSource) -> Iterator[bytes]:
    """Yield what is between the separators of a text."""
    parts: list[bytes] = []
    for at in range(0, len(source), _READ_AHEAD):
        text = source.read(at, min(_READ_AHEAD, len(source) - at)).tobytes()
        first, *others = text.split(SEPARATOR)
        parts.append(first)
        for other in others:
            yield b"".join(parts)
            parts = [other]
    yield b"".join(parts)


def _ids(document: bytes, tokenizer: Tokenizer | None) -> Ids:
    """Return the tokens of the separator and of a document behind it."""
    if tokenizer is None:
        return np.frombuffer(SEPARATOR + document, dtype=np.uint8).astype(np.int32)
    return np.append(tokenizer.ids_of_single_bytes(SEPARATOR), tokenizer.encode(document))


def _rolling(ids_n: Ids, window: int) -> Iterator[tuple[Ids, int]]:
    """Yield the windows of a document, and how many tokens each reads that were predicted."""
    for done in range(0, len(ids_n) - 1, window):
        end = min(done + window, len(ids_n) - 1)
        start = max(0, end - window)
        yield ids_n[start : end + 1], done - start


def _targets(source: ByteSource) -> int:
    if len(source) < 2:
        raise UserError(
            f"{source.setting}={source.label}: a single byte leaves nothing to predict; "
            f"name at least 2 bytes"
        )
    return len(source) - 1
