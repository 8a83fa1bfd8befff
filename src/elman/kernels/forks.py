"""Compiles by processes: Triton keeps Python's lock while it compiles, so that threads wait.

A compilation leaves its result in the cache of kernels. A child of this process makes it, and then
this process calls the same function, which finds it there. A child that fails, is killed or hangs
costs only time: then this process compiles, and any error is its own.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

from elman.kernels.threads import cpu_share

_MOST = 32  # children at once; each takes some 100 MB
PATIENCE_SECONDS = 120.0
"""So long a child may compile."""
_LOOK_SECONDS = 0.01

P = ParamSpec("P")
R = TypeVar("R")


class ForkingExecutor(ThreadPoolExecutor):
    """Calls each function in a child first, and then here: as many at a time as there are cores.

    On one core, and where the system has no fork, there are no children.
    """

    def __init__(self) -> None:
        self._most = min(cpu_share(), _MOST)
        self._children: set[int] = set()
        super().__init__(self._most, thread_name_prefix="elman-compile")

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Ask for a call whose result a child may leave in a cache."""
        return super().submit(lambda: self._called(fn, *args, **kwargs))

    def _called(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._most > 1 and hasattr(os, "fork"):
            self._call_in_child(lambda: fn(*args, **kwargs))
        return fn(*args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let no call begin any more; with ``cancel_futures`` also end the children."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        for child in [*self._children] if cancel_futures else []:
            _kill(child)
        super().shutdown(wait)

    def _call_in_child(self, call: Callable[[], object]) -> None:
        """Call a function in a child and wait for it, whatever comes of it."""
        child = _forked()
        if child is None:
            return
        if child == 0:
            _call_and_end(call)
        self._children.add(child)
        until = time.monotonic() + PATIENCE_SECONDS
        with suppress(ChildProcessError):  # somebody else has waited for it
            while os.waitpid(child, os.WNOHANG)[0] == 0:
                if time.monotonic() > until:
                    _kill(child)
                time.sleep(_LOOK_SECONDS)
        self._children.discard(child)


def _forked() -> int | None:
    """Return 0 in a new child and its number here; None if there is no room for another process."""
    with warnings.catch_warnings(), suppress(OSError):
        # Python 3.12 warns of threads. The child takes no lock that another thread may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
    return None


def _kill(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def _call_and_end(call: Callable[[], object]) -> None:
    """Call a function in a child that says nothing, and end the child."""
    try:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        call()
    finally:
        os._exit(0)
