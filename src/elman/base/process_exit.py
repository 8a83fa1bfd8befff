"""How this process exits: at once, without destructors, where one of them would wait for ever.

A library may wait in a destructor for a process that hangs. By then the results are on the disk.
Imports no torch.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from contextlib import suppress

_status: int | None = None
_skips = False


def exit_with(status: int) -> int:
    """Note the exit status that this process will have, and return it.

    From now on Ctrl-C ends the process at once with that status: within a destructor it would
    print a traceback.
    """
    global _status
    _status = status
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # another thread may set no handler
            signal.signal(signal.SIGINT, lambda number, frame: os._exit(status))
    return status


def skip_destructors() -> None:
    """Let this process end without destructors, after all that was registered with ``atexit``."""
    global _skips
    _skips = True


def _end() -> None:
    if not _skips or _status is None:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(_status)


atexit.register(_end)  # imported first of all, so it is called last
