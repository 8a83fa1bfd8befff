"""Where a job that is composed, checked and imported waits until its launcher has a GPU for it."""

from __future__ import annotations

from collections.abc import Callable

_wait: Callable[[], None] | None = None


def close(wait: Callable[[], None]) -> None:
    """Have the job of this process call ``wait`` right before it runs."""
    global _wait
    _wait = wait


def passed() -> None:
    """Return when the job may run; at once where no launcher has closed the gate."""
    if _wait is not None:
        _wait()
