"""The state of a job by its own folder: by its files, and by who holds its lock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.exit_status import RunStatus
from elman.evaluation.result import RunResult
from elman.runs.folder import lock_holder

NOT_STARTED, RUNNING, UNFINISHED = "not started", "running", "unfinished"
"""Words for a job that has not ended; ``unfinished``: it has begun, and left no result."""
ENDING_SECONDS = 10.0
"""Time for a process whose launcher is gone to end by itself, before its job is left out."""
_POLL_SECONDS = 0.2


def read_result(folder: Path | None, name: str) -> dict[str, Any] | None:
    """Return the result of a finished job, or None; a damaged file counts as no result."""
    if folder is None or not (path := folder / name).is_file():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # cut off or not text: the job counts as unfinished
        return None
    return result if isinstance(result, dict) else None


def recorded_status(result: Mapping[str, Any] | None) -> str | None:
    """Return the status in a job's result, of whatever mode; None if it has none."""
    status = (result or {}).get("status")
    return None if status is None else str(status)


def read_run_result(folder: Path, name: str = run_files.RESULT) -> RunResult | None:
    """Return the result of a run; None if there is none, or what it says makes no sense."""
    return RunResult.read(read_result(folder, name))


def has_begun(folder: Path) -> bool:
    """Whether a job has reached its mode; a process that waits for its GPU has not."""
    return (folder / run_files.CONFIG).exists()


def runs_in(folder: Path, result_name: str) -> str | None:
    """Return the id of the process that works on a job; None if there is none or it is done.

    A process that has written the job's result since it started is done, though it may need a
    moment to end. An older result belongs to an earlier session of the run.
    """
    holder = lock_holder(folder)
    with suppress(OSError):
        came = (folder / run_files.LOCK).stat().st_mtime_ns
        if (folder / result_name).stat().st_mtime_ns >= came:
            return None
    return holder


def state(folder: Path | None, result_name: str) -> str:
    """Return the state of a job in a word; it is the status in its result if nobody works on it."""
    if folder is None or not folder.is_dir():
        return NOT_STARTED
    status = recorded_status(read_result(folder, result_name))
    if status == RunStatus.OK:
        return status
    begun = has_begun(folder)
    if begun and runs_in(folder, result_name) is not None:
        return RUNNING
    return status or (UNFINISHED if begun else NOT_STARTED)


def still_running(
    folders: dict[int, Path], result_name: str, say: Callable[[str], None]
) -> dict[int, str]:
    """Return the process of each job that still runs, after a wait for jobs that are ending.

    If a launcher is killed, the kernel tells its jobs to save and end, which takes a moment.

    Args:
        folders: Run folders by the number of the job.
        result_name: The file with which a job ends.
        say: Prints a line; called once, when the wait begins.
    """
    deadline, said = time.monotonic() + ENDING_SECONDS, False
    while True:
        looked = {number: runs_in(folder, result_name) for number, folder in folders.items()}
        running = {number: process for number, process in looked.items() if process is not None}
        if not running or time.monotonic() >= deadline:
            return running
        if not said:
            named = ", ".join(f"job {number} (pid {pid})" for number, pid in running.items())
            say(f"{named} still running: waiting {ENDING_SECONDS:.0f} s, they may be ending")
            said = True
        time.sleep(_POLL_SECONDS)
