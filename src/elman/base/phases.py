"""The wall time of a job by its phases, from the start of its process on. Imports no torch.

Phases follow each other without a gap, so their sum is the time since the job began.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/self/stat")
# Number of the field `starttime` behind the name of the program, which may hold spaces.
_STARTED = 19

_own_process = False


def count_from_start_of_process() -> None:
    """Let the next job begin with this process: it is the only one here."""
    global _own_process
    _own_process = True


class Phases:
    """Seconds of each phase of a job.

    Args:
        began: When the job began, by ``time.monotonic``; now if None.

    Attributes:
        seconds: What :meth:`end` has counted, by the name of the phase.
    """

    def __init__(self, began: float | None = None) -> None:
        self._last = time.monotonic() if began is None else began
        self.seconds: dict[str, float] = {}

    @classmethod
    def of_this_job(cls) -> Phases:
        """Return the phases of a job: it begins now, or began with its own process."""
        global _own_process
        own, _own_process = _own_process, False
        return cls(time.monotonic() - (_age() if own else 0.0))

    def end(self, name: str) -> None:
        """Count the time since the last phase; a name may come several times."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def since(self) -> float:
        """Return the seconds since the last phase."""
        return time.monotonic() - self._last


def _age() -> float:
    """Return the seconds since this process was started; 0 where the system does not tell."""
    try:
        started = int(_STAT.read_text().rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return 0.0
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, now - started / os.sysconf("SC_CLK_TCK"))
