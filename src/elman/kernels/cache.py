"""The folder of compiled kernels. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from elman.base.cache import CACHE_VARIABLE, chosen_cache
from elman.base.errors import UserError

VARIABLE = CACHE_VARIABLE


def kernel_cache() -> Path:
    """Return the folder of compiled kernels: ``$ELMAN_CACHE``, or ``kernels`` in the user's cache.

    It can be removed at any time; its content is made again when needed. Machines may share it,
    because every name contains what the content depends on.
    """
    return chosen_cache("kernels")


def cannot_write(error: OSError) -> UserError:
    """Return the error for a cache that cannot be written."""
    where = error.filename or kernel_cache()
    return UserError(
        f"cannot write compiled kernels ({error.strerror}: {where}); "
        f"set {VARIABLE} to a folder that can be written and has space"
    )
