"""The shipped models as the catalog lists them, read once for all tests of a process."""

from __future__ import annotations

from functools import cache

from elman.config.catalog import Listed, catalog


@cache
def shipped() -> tuple[Listed, ...]:
    """Return every shipped model."""
    return tuple(catalog())
