"""Random numbers that are a pure function of where they are used.

NumPy only; no torch. A number depends on the seed, the split, the row and its lane and position,
and on nothing that was drawn before it. So a row is the same whatever the batch size, whoever makes
it and after whatever stop.

Shapes: b rows, n numbers of a row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mixed(words: _Words) -> _Words:
    """Return the finalizer of SplitMix64 (Steele, Lea, Flood 2014) of each word."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


class Draws:
    """The random numbers of some rows.

    Args:
        key: What all rows share: seed, split and the like; each a whole number below 2^63.
        rows_b: Number of each row, int64; the same number is the same row.
    """

    def __init__(self, key: tuple[int, ...], rows_b: Ints) -> None:
        words = np.zeros(1, dtype=np.uint64)
        for part in key:
            words = _mixed(words ^ np.uint64(part))
        self._rows_b = _mixed(words ^ rows_b.astype(np.uint64))
        self.rows = len(rows_b)

    def below(self, lane: int, count: int, limit: int) -> Ints:
        """Return whole numbers below ``limit``, int64 [b, count].

        Args:
            lane: Numbers of different lanes are independent.
            count: n.
            limit: At most 2^31.
        """
        high = self._words(lane, count) >> np.uint64(32)
        return ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)

    def order(self, lane: int, count: int) -> Ints:
        """Return a random order of 0 to ``count`` - 1 for each row, int64 [b, count]."""
        return np.argsort(self._words(lane, count), axis=1, kind="stable")

    def _words(self, lane: int, count: int) -> _Words:
        places = _mixed(np.arange(count, dtype=np.uint64) ^ np.uint64(lane << 40))
        return _mixed(self._rows_b[:, None] ^ places[None, :])
