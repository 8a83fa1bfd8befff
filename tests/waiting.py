"""Waits for what happens in other processes, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 180.0


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so, and fail where it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    """Return whether a process is over, be it that nobody has waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"
