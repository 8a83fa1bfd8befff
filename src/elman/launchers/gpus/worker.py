"""The process of one job: started early, it composes and imports, waits for its GPU, then runs.

    python -m elman.launchers.gpus.worker <submitit folder> <launcher's pid> <answers>

Orders come on stdin as one JSON object; end of file means that there is no work. Answers go to the
inherited descriptor ``answers``, one word each. A launcher's pid of 0 lets the job outlive it.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn

from elman.devices.locks import GpuLock
from elman.launchers import place

WAITING, RUNNING, HELD = "waiting", "running", "held"
"""Answers: ready to run; running, with the GPU's ``run`` lock; somebody else has that lock."""
_PR_SET_PDEATHSIG = 1


def main(folder: str, launcher: int, answers: int) -> int:
    """Run the job that submitit keeps in ``folder``; its result is submitit's, on the disk."""
    from submitit.core.submission import process_job

    if launcher:
        _end_with(launcher)
    logging.getLogger("submitit").setLevel(logging.WARNING)
    lock: list[GpuLock] = []  # held until this process dies
    place.close(lambda: lock.extend(_wait(answers)))
    process_job(folder)
    return 0


def _wait(answers: int) -> list[GpuLock]:
    """Wait for the order, pin this process to its GPU and return the lock that it holds.

    Raises:
        KeyboardInterrupt: there is no work, or the GPU is another's.
    """
    _answer(answers, WAITING)
    order = _order()
    if order is None:
        raise KeyboardInterrupt
    _check_untouched()
    os.environ.update(order["environment"])
    lock = [GpuLock(order["lock"], "run")] if order["lock"] else []
    if not all(one.take(f"runs {order['what']}") for one in lock):
        _answer(answers, HELD)
        raise KeyboardInterrupt
    _answer(answers, RUNNING)
    os.close(answers)
    return lock


def _order() -> dict[str, Any] | None:
    """Return the order, or None if the launcher is gone or has no work; then close stdin."""
    line = sys.stdin.readline()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return json.loads(line) if line else None


def _check_untouched() -> None:
    """Assert that CUDA has not looked for GPUs yet: it would not look again."""
    torch = sys.modules.get("torch")
    assert torch is None or not torch.cuda.is_initialized(), "an import has started CUDA"


def _answer(descriptor: int, word: str) -> None:
    with suppress(BrokenPipeError):  # the launcher is gone, and the job was let go on without it
        os.write(descriptor, f"{word}\n".encode())


def _end_with(launcher: int) -> None:
    """Have the kernel send SIGTERM, on which a job saves and ends, when the launcher dies."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != launcher:  # it died before this
        sys.exit(0)


def _leave(status: int) -> NoReturn:
    """End this process without taking Python apart, which with torch costs the GPU a second."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
