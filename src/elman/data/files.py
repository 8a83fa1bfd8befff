"""Reads one or several files of raw bytes as one long text.

Reads are positional (``pread``) on descriptors that stay open. There is no memory map: if a file
shrinks under a running job, a memory map ends with a SIGBUS, while a read gives one clear error.
NumPy only; no torch.

Shapes: b rows, n bytes.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import resource
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from elman.base.closing import Closing
from elman.base.errors import UserError
from elman.data.matching import Names, matched, refuse

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

FULL_HASH_LIMIT = 256 * 2**20
SAMPLE_BLOCKS = 1024
SAMPLE_BLOCK = 4096
_HASH_STEP = 4 * 2**20
# Descriptors that stay free for the rest of the process: logs, libraries, devices.
_SPARE_DESCRIPTORS = 256


class ByteSource(Closing):
    """Files, concatenated in the order of their absolute paths, without separators.

    Args:
        names: As :func:`~elman.data.matching.matched` takes them.
        setting: The configuration key that named them, for error messages.

    Raises:
        UserError: as :func:`~elman.data.matching.matched`, or a file cannot be opened.
    """

    def __init__(
        self,
        names: Names,
        *,
        setting: str = "data.path",
    ) -> None:
        self.setting = setting
        self.paths: tuple[str, ...] = ()
        self._descriptors: list[int] = []
        self._sha256: tuple[str | None, str | None] | None = None
        sizes: list[int] = []
        try:
            listed = matched(names, setting).files
            self.paths = tuple(match.path for match in listed)
            may_hold_open(len(listed))
            for match in listed:
                self._descriptors.append(_open(match.path, setting, len(listed)))
                sizes.append(match.status.st_size)
        except BaseException:
            self.close()
            raise
        self._divide(sizes)

    def _divide(self, sizes: Sequence[int]) -> None:
        """Note where each file begins and ends."""
        # File i holds the positions from _borders[i] to _borders[i + 1].
        self._borders = list(itertools.accumulate(sizes, initial=0))
        self._starts = np.array(self._borders[:-1], dtype=np.int64)
        self._ends = np.array(self._borders[1:], dtype=np.int64)

    def _join(self, *sources: ByteSource) -> None:
        """Read the files of other sources, which keep them open."""
        self.setting = sources[0].setting
        self.paths = tuple(path for one in sources for path in one.paths)
        self._descriptors = [number for one in sources for number in one._descriptors]
        self._sha256 = None
        self._divide([int(size) for one in sources for size in one._ends - one._starts])

    def __len__(self) -> int:
        return self._borders[-1]

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    @property
    def label(self) -> str:
        """The path, or the first path and the number of the others."""
        more = len(self.paths) - 1
        return self.paths[0] + (f" and {more} more" if more else "")

    def read(self, offset: int, length: int) -> Bytes:
        """Return ``length`` bytes from position ``offset`` on: uint8 [n].

        Raises:
            UserError: a file became shorter than it was when opened.
        """
        window_n = np.empty(length, dtype=np.uint8)
        self.read_into(offset, window_n)
        return window_n

    def read_into(self, offset: int, window_n: Bytes) -> None:
        """Fill a contiguous uint8 array from position ``offset`` on; errors as :meth:`read`."""
        assert self._descriptors, "read from a closed source"
        assert 0 <= offset <= len(self) - len(window_n), (offset, len(window_n))
        view = window_n.data
        while len(view):
            index = bisect_right(self._borders, offset) - 1
            inside = min(len(view), self._borders[index + 1] - offset)
            self._read_file(index, offset - self._borders[index], view[:inside])
            view = view[inside:]
            offset += inside

    def gather(self, offsets_b: Offsets, length: int) -> Bytes:
        """Return the windows of ``length`` bytes at ``offsets_b``: uint8 [b, n], writable.

        Raises:
            UserError: a file became shorter than it was when opened.
        """
        assert self._descriptors, "read from a closed source"
        assert offsets_b.min() >= 0
        assert offsets_b.max() + length <= len(self)
        if (joined := self._gather_whole(offsets_b, length)) is not None:
            return np.frombuffer(joined, dtype=np.uint8).reshape(-1, length)
        rows_bn = np.empty((len(offsets_b), length), dtype=np.uint8)
        for row_n, offset in zip(rows_bn, offsets_b.tolist(), strict=True):
            self.read_into(offset, row_n)
        return rows_bn

    def describe(self) -> dict[str, Any]:
        """Return ``paths``, ``bytes``, ``sha256`` and ``sample_sha256``; computed once.

        Up to 256 MiB, ``sha256`` is the hash of all bytes in order and ``sample_sha256`` is None.
        Above, ``sha256`` is None and ``sample_sha256`` covers the number of bytes (decimal) and
        1024 evenly spaced blocks of 4 KiB. Neither depends on file names or file borders.
        """
        if self._sha256 is None:
            whole = len(self) <= FULL_HASH_LIMIT
            self._sha256 = (self.whole_hash(), None) if whole else (None, self._sample_hash())
        full, sample = self._sha256
        return {
            "paths": list(self.paths),
            "bytes": len(self),
            "sha256": full,
            "sample_sha256": sample,
        }

    def quick_hash(self) -> str:
        """Return a quick hash (milliseconds) that tells a damaged file from a whole one.

        Up to 4 MiB it covers all bytes; above, it is ``sample_sha256`` of :meth:`describe`.
        """
        few = len(self) <= SAMPLE_BLOCKS * SAMPLE_BLOCK
        return self.whole_hash() if few else self._sample_hash()

    def _gather_whole(self, offsets_b: Offsets, length: int) -> bytearray | None:
        """Return all windows joined; None if one crosses files, is cut short or fails."""
        index_b = np.searchsorted(self._ends, offsets_b, side="right")
        if (offsets_b + length > self._ends[index_b]).any():
            return None
        files = [self._descriptors[index] for index in index_b.tolist()]
        places = (offsets_b - self._starts[index_b]).tolist()
        try:
            joined = bytearray().join(map(os.pread, files, itertools.repeat(length), places))
        except OSError:
            return None
        # No part is longer than requested, so the sum is right only if every part is whole.
        return joined if len(joined) == len(offsets_b) * length else None

    def whole_hash(self) -> str:
        """Return the SHA-256 of all bytes, which are read for it."""
        digest = hashlib.sha256()
        for offset in range(0, len(self), _HASH_STEP):
            digest.update(self.read(offset, min(_HASH_STEP, len(self) - offset)).data)
        return digest.hexdigest()

    def _sample_hash(self) -> str:
        digest = hashlib.sha256(str(len(self)).encode())
        last = len(self) - SAMPLE_BLOCK
        for block in range(SAMPLE_BLOCKS):
            offset = block * last // (SAMPLE_BLOCKS - 1)
            digest.update(self.read(offset, SAMPLE_BLOCK).data)
        return digest.hexdigest()

    def _read_file(self, index: int, offset: int, view: memoryview) -> None:
        """Fill ``view`` from one file, even if each read returns only a few bytes."""
        descriptor = self._descriptors[index]
        while len(view):
            try:
                part = os.pread(descriptor, len(view), offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.paths[index]) from error
            if not part:
                self._shrank(index)
            view[: len(part)] = part
            view = view[len(part) :]
            offset += len(part)

    def _shrank(self, index: int) -> NoReturn:
        expected = self._borders[index + 1] - self._borders[index]
        now = os.fstat(self._descriptors[index]).st_size
        raise UserError(
            f"{self.setting}={self.paths[index]}: shrank from {expected} bytes to {now} while "
            f"being read; put the whole file back and resume, or start a new run on it as it is"
        )


def same_bytes(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs read the same bytes with the same split; file names do not matter.

    Args:
        one: ``bytes``, ``train_bytes`` and the hashes of :meth:`ByteSource.describe`.
        other: The same of the other run. If either has no hash of all bytes, the sample hashes
            decide.
    """
    hashed = one["sha256"] is not None and other["sha256"] is not None
    keys = ("bytes", "train_bytes", "sha256" if hashed else "sample_sha256")
    return all(one[key] == other[key] for key in keys)


def _open(path: str, setting: str, n_files: int) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            refuse(path, setting, error)
        raise UserError(
            f"{setting}: {n_files} files, more than this process may hold open; join them into "
            f"one (cat), or type: ulimit -n {n_files + _SPARE_DESCRIPTORS}"
        ) from None


def may_hold_open(n_files: int) -> bool:
    """Whether this process may hold ``n_files`` open in addition to everything else.

    It raises the soft limit on open files as far as needed and as the hard limit allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = n_files + _SPARE_DESCRIPTORS
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft == resource.RLIM_INFINITY or soft >= needed
