"""How a job ended, in words."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from elman.errors import ExitStatus, RunStatus
from elman.launch.job_state import NOT_STARTED

_WORDS = {status.exit_status: status.value for status in RunStatus}
_WORDS[ExitStatus.USER_ERROR] = "refused"


def status_word(code: int) -> str:
    """Return the word for an exit status; a negative one is the signal that the job died of."""
    if code < 0:
        return f"killed ({signal.Signals(-code).name})"
    return _WORDS.get(ExitStatus(code), "crash") if code in set(ExitStatus) else "crash"


def job_status(returned: JobReturn, result: Mapping[str, Any] | None) -> str:
    """Return how a job of a sweep ended: as its result file says, or else as its process did.

    A result that does not fit the process's exit status is that of an earlier session.
    """
    if returned.status is JobStatus.UNKNOWN:
        return NOT_STARTED
    code = returned._return_value
    if isinstance(code, int) and (code < 0 or code == ExitStatus.TIMEOUT):
        return status_word(code)
    if result is not None and "status" in result and not _is_earlier(str(result["status"]), code):
        return str(result["status"])
    return status_word(code) if isinstance(code, int) else RunStatus.CRASH.value


def _is_earlier(word: str, code: object) -> bool:
    """Whether a word is that of another session than the one with this exit status."""
    if word not in set(RunStatus) or word == RunStatus.OK or not isinstance(code, int):
        return False
    return RunStatus(word).exit_status != code
