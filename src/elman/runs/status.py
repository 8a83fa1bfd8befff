"""How a job ended, in words."""

from __future__ import annotations

import signal

from hydra.core.utils import JobReturn, JobStatus

from elman.base.exit_status import ExitStatus, RunStatus, run_status
from elman.runs.state import NOT_STARTED


class OutsideEnd(int):
    """The exit status of a job that its scheduler ended.

    Args:
        code: The exit status.
        word: How it ended, in a word or two.
        reason: Why, in one line.
    """

    word: str
    reason: str

    def __new__(cls, code: int, word: str, reason: str) -> OutsideEnd:
        made = super().__new__(cls, code)
        made.word, made.reason = word, reason
        return made


def status_word(code: int) -> str:
    """Return the word for an exit status; a negative one is the signal that killed the job."""
    if isinstance(code, OutsideEnd):
        return code.word
    if code < 0:
        return f"killed ({signal.Signals(-code).name})"
    return run_status(code).value


def job_status(returned: JobReturn, recorded: str | None) -> str:
    """Return how a job of a sweep ended: by its result file, or else by its process.

    A result that does not fit the process's exit status belongs to an earlier session.
    """
    if returned.status is JobStatus.UNKNOWN:
        return NOT_STARTED
    code = returned._return_value
    return ended_as(code, recorded) if isinstance(code, int) else recorded or RunStatus.CRASH.value


def ended_as(code: int, recorded: str | None) -> str:
    """Return how a job ended.

    Args:
        code: Its exit status, negative for a signal.
        recorded: The status in its result, or None; that of a resumed job may be from an earlier
            session.
    """
    word = status_word(code)
    if code < 0 or code == ExitStatus.TIMEOUT:
        return word
    own = recorded or word
    # The result of a stopped job may be from an earlier start, unless it is ok.
    if own != RunStatus.OK and (isinstance(code, OutsideEnd) or _is_earlier(own, code)):
        return word
    return own


def _is_earlier(word: str, code: int) -> bool:
    """Whether a word does not fit this exit status and so is from another session."""
    return word in set(RunStatus) and not RunStatus(word).fits(code)
