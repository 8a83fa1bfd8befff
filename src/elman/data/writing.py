"""A file that is hashed while it is written."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

# Between two waits for the disk: or the last one would be long, and nothing would show it.
_SYNC_BYTES = 2**30


class HashedFile:
    """Appends to a file and hashes all of it.

    Args:
        out: The file, open where writing goes on.
        digest: The hash of what stands before that place.
        n_bytes: How many bytes those are.
    """

    def __init__(self, out: BinaryIO, digest: hashlib._Hash, n_bytes: int) -> None:
        self._out, self._digest = out, digest
        self.n_bytes = self._synced = n_bytes

    def put(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: they, or some before them, cannot be written.
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
