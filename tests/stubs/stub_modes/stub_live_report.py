"""Writes no report while a sweep runs: a sweep of stubs has one when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def live_report(folder: Path | None) -> Iterator[None]:
    """Say where it would stand."""
    if folder is not None:
        print(f"report while it runs: {folder / 'report.html'}", flush=True)
    yield
