"""The exit statuses of the ``elman`` command, the ends of a run, and which belong together.

A new status, or another one for a signal, is a change of this file and of the table in README.md,
which a test compares. Imports no torch.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ExitStatus(IntEnum):
    """Exit statuses of the ``elman`` command; :data:`MEANINGS` says what each of them means."""

    OK = 0
    FAILED = 1
    USER_ERROR = 2
    NON_FINITE = 3
    OUT_OF_MEMORY = 4
    TIMEOUT = 5
    WORSE = 10
    UNDECIDED = 11
    INTERRUPTED = 130


MEANINGS = {
    ExitStatus.OK: "ok",
    ExitStatus.FAILED: "crash, refused, or a failed job",
    ExitStatus.USER_ERROR: "your command was wrong",
    ExitStatus.NON_FINITE: "the loss or gradient was not finite",
    ExitStatus.OUT_OF_MEMORY: "out of memory",
    ExitStatus.TIMEOUT: "timeout",
    ExitStatus.WORSE: "mode=verdict: a is worse than b; 0 is better",
    ExitStatus.UNDECIDED: "mode=verdict: more seeds are needed",
    ExitStatus.INTERRUPTED: "interrupted by a signal",
}
_AFTER_SIGNALS = frozenset({ExitStatus.INTERRUPTED})
_ANSWERS = frozenset({ExitStatus.OK, ExitStatus.WORSE, ExitStatus.UNDECIDED})


def interrupted_status() -> ExitStatus:
    """Return the exit status of a command that a signal has told to end."""
    return ExitStatus.INTERRUPTED


def is_interrupted(code: int | None) -> bool:
    """Whether this is the exit status of a command that a signal told to end, and that did so."""
    return code in _AFTER_SIGNALS


def is_failure(code: int | None) -> bool:
    """Whether a command with this exit status neither did its work nor was told to end."""
    return code not in _ANSWERS and not is_interrupted(code)


def shell_status(code: int) -> int:
    """Return the exit status of a process as a shell gives it.

    Args:
        code: Its status; ``-n`` if signal ``n`` killed it.
    """
    return code if code >= 0 else 128 - code


class RunStatus(StrEnum):
    """How a run ended, as in ``result.json``; ``refused``: a check before the run failed."""

    OK = "ok"
    NAN = "nan"
    OOM = "oom"
    CRASH = "crash"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"

    @property
    def exit_status(self) -> ExitStatus:
        """The exit status of a command whose run ended with this status."""
        return interrupted_status() if self is RunStatus.INTERRUPTED else _EXIT_STATUS[self]

    def fits(self, code: int) -> bool:
        """Whether a command whose run ended with this status may have this exit status."""
        return is_interrupted(code) if self is RunStatus.INTERRUPTED else _EXIT_STATUS[self] == code


_EXIT_STATUS = {
    RunStatus.OK: ExitStatus.OK,
    RunStatus.NAN: ExitStatus.NON_FINITE,
    RunStatus.OOM: ExitStatus.OUT_OF_MEMORY,
    RunStatus.CRASH: ExitStatus.FAILED,
    RunStatus.REFUSED: ExitStatus.FAILED,  # a check that failed, not a mistake in the command
    RunStatus.TIMEOUT: ExitStatus.TIMEOUT,
}


def run_status(code: int) -> RunStatus:
    """Return how a run ended of which only the exit status of its command is known."""
    if is_interrupted(code):
        return RunStatus.INTERRUPTED
    if code == ExitStatus.USER_ERROR:
        return RunStatus.REFUSED
    known = (word for word, status in _EXIT_STATUS.items() if status == code)
    return next(known, RunStatus.CRASH)  # a crash comes before what was refused
