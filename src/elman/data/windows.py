"""The bytes to score: validation windows, and windows or chunks of any text.

NumPy only; no torch.

Shapes: b rows, at most B; T predicted bytes in a row (``window``). A row has T + 1 bytes, so that
every predicted byte has its predecessor in the row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from elman.base.errors import UserError
from elman.data.batches import Data
from elman.data.files import Bytes, ByteSource, Offsets


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


def _targets(source: ByteSource) -> int:
    if len(source) < 2:
        raise UserError(
            f"{source.setting}={source.label}: a single byte leaves nothing to predict; "
            f"name at least 2 bytes"
        )
    return len(source) - 1
