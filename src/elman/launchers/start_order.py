"""Here a job that is checked and imported waits for its launcher's order to start, on which GPU.

The launcher starts a job's process early. An environment variable names the open descriptor on
which the process answers. The launcher sends its order on stdin, as one JSON object; end of file
means that there is no work. A process without that variable starts at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from elman.devices.locks import GpuLock, take_run_locks
from elman.devices.sharing import jobs_per_gpu

ANSWERS = "ELMAN_PLACE_ANSWERS"
"""Environment variable with the descriptor on which a waiting process answers."""
WAITING, RUNNING, HELD = "waiting", "running", "held"
"""Answers: ready to run; running, with its GPUs' ``run`` locks; another job has one of them."""
_LOCKS: list[GpuLock] = []  # held until this process dies


def order_to_start() -> Callable[[], None]:
    """Return the function that a job calls last before it runs; it returns when the job may run."""
    answers = os.environ.pop(ANSWERS, None)
    if answers is None:
        return lambda: None
    descriptor = int(answers)
    return lambda: _wait(descriptor)


def _wait(answers: int) -> None:
    """Wait for the order, pin this process to its GPUs and take their locks.

    Raises:
        KeyboardInterrupt: there is no work, or another job has one of the GPUs.
    """
    _answer(answers, WAITING)
    order = _order()
    if order is None:
        raise KeyboardInterrupt
    _check_untouched()
    os.environ.update(order["environment"])
    shared = jobs_per_gpu() > 1
    locks = take_run_locks(order["locks"], f"runs {order['what']}", shared=shared)
    if locks is None:
        _answer(answers, HELD)
        raise KeyboardInterrupt
    _answer(answers, RUNNING)
    os.close(answers)
    hold(locks)


def hold(locks: Sequence[GpuLock]) -> None:
    """Keep locks until this process dies."""
    _LOCKS.extend(locks)


def held_locks() -> list[GpuLock]:
    """Return the ``run`` locks of this process's GPUs."""
    return list(_LOCKS)


def _order() -> dict[str, Any] | None:
    """Return the order, or None if the launcher is gone or has no work; then close stdin."""
    line = sys.stdin.readline()
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return json.loads(line) if line else None


def _check_untouched() -> None:
    """Assert that CUDA has not looked for GPUs yet, because it looks only once."""
    torch = sys.modules.get("torch")
    assert torch is None or not torch.cuda.is_initialized(), "an import has started CUDA"


def _answer(descriptor: int, word: str) -> None:
    with suppress(BrokenPipeError):  # the launcher is gone, and the job may go on without it
        os.write(descriptor, f"{word}\n".encode())
