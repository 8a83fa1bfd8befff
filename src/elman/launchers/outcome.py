"""What a job that ran through submitit left behind: its exit status and its last line."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from elman.base.exit_status import ExitStatus, is_failure

if TYPE_CHECKING:  # a single run needs no submitit
    from submitit.core.utils import JobPaths

_TAIL_BYTES = 16384
_SAY_WHY = (
    ExitStatus.OUT_OF_MEMORY,
    ExitStatus.NON_FINITE,
    ExitStatus.TIMEOUT,
    ExitStatus.USER_ERROR,
)
ERROR = "elman: "
"""Start of the line in which the command reports an error; a run's summary may follow it."""


def result_status(paths: JobPaths) -> int | None:
    """Return the exit status in a job's result, or None if there is no result."""
    try:
        outcome, result = pickle.loads(paths.result_pickle.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError, ValueError):
        return None
    return int(result) if outcome == "success" else int(ExitStatus.FAILED)


def telling(statuses: Sequence[int]) -> int:
    """Return which of several ranks ended in the way that its job ended.

    A rank that says why it ended (no memory, not finite, time, refused) comes first. Then comes
    the first that failed or was killed: those after it lost it. Then one that was interrupted.

    Args:
        statuses: Exit status of each rank, negative for a signal, in the order of their ends.
    """
    kinds = [
        [n for n, status in enumerate(statuses) if status in _SAY_WHY],
        [n for n, status in enumerate(statuses) if is_failure(status)],
        [n for n, status in enumerate(statuses) if status != ExitStatus.OK],
    ]
    return next((kind[0] for kind in kinds if kind), 0)


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
