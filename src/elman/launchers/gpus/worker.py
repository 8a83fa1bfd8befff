"""The process of one job: it starts early, composes, imports, waits for its GPU, then runs.

    python -m elman.launchers.gpus.worker <submitit folder> <launcher's pid> <answers>

It waits in :mod:`elman.launchers.start_order`. If the launcher's pid is 0, the job outlives the
launcher.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from elman.launchers.start_order import ANSWERS

_PR_SET_PDEATHSIG = 1


def main(folder: str, launcher: int, answers: str) -> int:
    """Run the job that submitit keeps in ``folder``; submitit writes its result to the disk."""
    from submitit.core.submission import process_job

    if launcher:
        _end_with(launcher)
    logging.getLogger("submitit").setLevel(logging.WARNING)
    os.environ[ANSWERS] = answers
    process_job(folder)
    return 0


def _end_with(launcher: int) -> None:
    """Make the kernel send SIGTERM when the launcher dies: the job then saves and ends."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != launcher:  # it died before this
        sys.exit(0)


def _leave(status: int) -> NoReturn:
    """End this process without Python's clean-up, which with torch holds the GPU for a second."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
