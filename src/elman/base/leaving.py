"""Ends a process whose normal end would wait for ever, once everything else is done.

A library may wait in a destructor for a process that hangs. By then the results are on the disk.
Imports no torch.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress

_status: int | None = None
_at_once = False


def ends_with(status: int) -> int:
    """Note the exit status of this process, and return it."""
    global _status
    _status = status
    return status


def end_at_once() -> None:
    """Let this process end without destructors, after all that was registered with ``atexit``."""
    global _at_once
    _at_once = True


def _end() -> None:
    if not _at_once or _status is None:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(_status)


atexit.register(_end)  # imported first of all, so it is called last
