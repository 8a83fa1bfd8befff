"""Rewrites the report of a sweep each minute while its jobs run.

A process of its own does it, at the lowest priority: it cannot slow down or crash the launcher.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elman.base.quoting import quoted

PAGE_SECONDS = 60.0
_FIRST_SECONDS = 5.0
# A report that takes long is written more rarely: it may use this share of one core.
_SHARE = 0.05
_PATIENCE_SECONDS = 5.0


@contextmanager
def live_report(
    folder: Path | None, every: float = PAGE_SECONDS, first: float = _FIRST_SECONDS
) -> Iterator[None]:
    """Rewrite the report in a sweep's folder until the jobs are done.

    Args:
        folder: The folder of a sweep of training runs; None writes nothing.
        every: Seconds between two reports.
        first: Seconds before the first one.
    """
    if folder is None:
        yield
        return
    print(f"report while it runs: {folder / 'report.html'}", flush=True)
    done = threading.Event()
    writer = threading.Thread(target=_rewrite, args=(folder, done, every, first), daemon=True)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def _rewrite(folder: Path, done: threading.Event, every: float, first: float) -> None:
    wait = first
    while not done.wait(wait):
        began = time.monotonic()
        _write(folder, done)
        wait = max(every, (time.monotonic() - began) / _SHARE)


def _write(folder: Path, done: threading.Event) -> None:
    """Write the report once; a report that cannot be written is no reason to disturb the jobs."""
    command = [sys.executable, "-m", "elman", "mode=report", f"report.dir={quoted(str(folder))}"]
    try:
        # A group of its own: Ctrl-C is for the launcher.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except OSError:
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, 19)
    while child.poll() is None:
        if done.wait(0.1):
            _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a report that is no longer wanted: the sweep writes the last one itself."""
    child.terminate()
    try:
        child.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
