"""A file that is hashed while it is written."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

# Bytes between two waits for the disk. Without them the last wait would be long and silent.
_SYNC_BYTES = 2**30


class HashedFile:
    """Appends to a file and hashes all of it.

    Args:
        out: The file, open where writing goes on.
        digest: The hash of the bytes before that position.
        n_bytes: Number of those bytes.
    """

    def __init__(self, out: BinaryIO, digest: hashlib._Hash, n_bytes: int) -> None:
        self._out, self._digest = out, digest
        self.n_bytes = self._synced = n_bytes

    def put(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: these bytes, or earlier ones, cannot be written.
        """
        self._out.write(data)
        self._digest.update(data)
        self.n_bytes += len(data)
        if self.n_bytes - self._synced >= _SYNC_BYTES:
            self.sync()

    def sync(self) -> str:
        """Wait until everything is on the disk and return its SHA-256.

        Raises:
            OSError: something cannot be written.
        """
        self._out.flush()
        os.fsync(self._out.fileno())
        self._synced = self.n_bytes
        return self._digest.hexdigest()
