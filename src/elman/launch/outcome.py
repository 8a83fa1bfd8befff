"""What a job that went through submitit has left: its exit status and its last words."""

from __future__ import annotations

import pickle
from contextlib import suppress

from submitit.core.utils import JobPaths

from elman.errors import ExitStatus

_TAIL_BYTES = 4096


def result_status(paths: JobPaths) -> int | None:
    """Return the exit status in a job's result, or None if it has left none."""
    try:
        outcome, result = pickle.loads(paths.result_pickle.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError, ValueError):
        return None
    return int(result) if outcome == "success" else int(ExitStatus.FAILED)


def last_line(paths: JobPaths) -> str:
    """Return the last thing that a job said, of an error if it said of one."""
    for path in (paths.stderr, paths.stdout):
        with suppress(OSError):
            text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").rstrip()
            if text:
                return text.splitlines()[-1]
    return ""
