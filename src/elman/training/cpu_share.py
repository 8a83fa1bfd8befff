"""How much of the time of its CPUs other work took from a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_STAT = Path("/proc/stat")
# Of a line of /proc/stat, behind the CPU's name: user nice system idle iowait irq softirq steal.
# What guests take is in user and nice, too.
_BUSY = (0, 1, 2, 5, 6, 7)
LEAST_SECONDS = 3.0
"""Shorter than that, the ticks of the system's clock tell too little."""


class Reading(NamedTuple):
    """CPU seconds until now.

    Args:
        at: Seconds of the clock on the wall.
        busy: What all processes and the machine's host took of the CPUs that this one may use.
        own: What the run's own processes took.
    """

    at: float
    busy: float
    own: float


class CpuShare:
    """Compares what a run's threads need of the CPUs with what others leave them.

    Args:
        cpus: How many CPUs the run may use.
        threads: How many of them it can keep busy.
        read: Returns the present reading, or None where that is impossible.
    """

    def __init__(self, cpus: int, threads: int, read: Callable[[], Reading | None]) -> None:
        self._cpus, self._threads, self._read = cpus, min(threads, cpus), read
        self._first = read()

    def lost(self) -> float | None:
        """Return the share of its threads' time that others took since the beginning, 0 to 1.

        None if that is unknown, or it began less than :data:`LEAST_SECONDS` ago.
        """
        now = self._read()
        if self._first is None or now is None or now.at - self._first.at < LEAST_SECONDS:
            return None
        seconds = now.at - self._first.at
        others = max(0.0, (now.busy - self._first.busy) - (now.own - self._first.own))
        missing = others / seconds + self._threads - self._cpus
        return min(max(missing / self._threads, 0.0), 1.0)


def reading(cpus: Collection[int], ranks: Collection[int]) -> Reading | None:
    """Return what this machine says now; None if it has no /proc/stat.

    Args:
        cpus: The CPUs that count.
        ranks: The processes of the run's ranks on this host; this one is always among them.
    """
    try:
        text = _STAT.read_text()
    except OSError:
        return None
    busy = busy_seconds(text, cpus)
    own = sum(_cpu_seconds(pid) for pid in {os.getpid(), *ranks})
    return None if busy is None else Reading(time.monotonic(), busy, own)


def busy_seconds(stat: str, cpus: Collection[int]) -> float | None:
    """Return the seconds that these CPUs were busy since the start of the machine.

    Args:
        stat: The text of /proc/stat.
        cpus: Their numbers.
    """
    names = {f"cpu{number}" for number in cpus}
    lines = [line.split()[1:] for line in stat.splitlines() if line.split(" ", 1)[0] in names]
    if not lines:
        return None
    ticks = sum(int(fields[at]) for fields in lines for at in _BUSY if at < len(fields))
    return float(ticks / os.sysconf("SC_CLK_TCK"))


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, of its children and of those that have ended."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
