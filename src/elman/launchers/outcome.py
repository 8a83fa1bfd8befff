"""What a job that ran through submitit left behind: its exit status and its last line."""

from __future__ import annotations

import pickle
from contextlib import suppress

from submitit.core.utils import JobPaths

from elman.base.errors import ExitStatus

_TAIL_BYTES = 16384
ERROR = "elman: "
"""Start of the line in which the command reports an error; a run's summary may follow it."""


def result_status(paths: JobPaths) -> int | None:
    """Return the exit status in a job's result, or None if there is no result."""
    try:
        outcome, result = pickle.loads(paths.result_pickle.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError, ValueError):
        return None
    return int(result) if outcome == "success" else int(ExitStatus.FAILED)


def last_line(paths: JobPaths, begun: tuple[int, int] = (0, 0)) -> str:
    """Return the last line that a job printed, or its error line if it printed one.

    Args:
        paths: Paths of its files.
        begun: Sizes of its stderr and stdout when it began: before that is an earlier attempt.
    """
    lines: list[str] = []
    for path, start in zip((paths.stderr, paths.stdout), begun, strict=True):
        with suppress(OSError):
            text = path.read_bytes()[start:][-_TAIL_BYTES:].decode(errors="replace")
            lines += [line for line in reversed(text.splitlines()) if line.strip()]
    return next((line for line in lines if line.startswith(ERROR)), lines[0] if lines else "")
