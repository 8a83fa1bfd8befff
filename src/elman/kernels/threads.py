"""The number of threads of a kernel: at most the process's share of the machine.

Imports no torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath

from elman.base.cpus import usable_cpus

_CGROUP = Path("/sys/fs/cgroup")
_VARIABLES = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT")


def kernel_threads(torch_threads: int) -> int:
    """Return the number of threads of a kernel.

    Args:
        torch_threads: ``torch.get_num_threads()``, which comes from the user or from
            OMP_NUM_THREADS. A kernel never uses more.
    """
    return max(1, min(torch_threads, cpu_share()))


@cache
def cpu_share() -> int:
    """Return how many threads this process can keep busy, computed at the first call.

    It is the smallest of these numbers: the CPUs that it may run on (affinity), the quota of its
    container or job (cgroup versions 2 and 1, rounded up), OMP_NUM_THREADS and OMP_THREAD_LIMIT.
    """
    limits = [len(usable_cpus()), *_quotas(), *_from_environment()]
    return max(1, min(limits))


def _from_environment() -> list[int]:
    """Return the limits in OpenMP's variables; a list has one number per nesting level."""
    texts = (os.environ.get(name, "").split(",")[0].strip() for name in _VARIABLES)
    return [int(text) for text in texts if text.isdigit() and int(text) > 0]


def _quotas() -> list[int]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [quota for line in lines for quota in quotas_of(line, _CGROUP)]


def quotas_of(line: str, root: Path) -> list[int]:
    """Return the CPU quotas of the group in one line of /proc/self/cgroup, in CPUs, rounded up.

    Args:
        line: ``<number>:<controllers>:<path>``; the controllers are empty in version 2.
        root: Where the cgroup file systems are mounted.
    """
    _, controllers, path = line.split(":", 2)
    if controllers == "":
        return _along(root, path, _quota_v2)
    if "cpu" in controllers.split(","):
        return _along(root / controllers, path, _quota_v1) or _along(root / "cpu", path, _quota_v1)
    return []


def _along(root: Path, path: str, read: Callable[[Path], float | None]) -> list[int]:
    """Return the quotas of a group and of all its parents; each quota is a limit."""
    inside = PurePosixPath(path.lstrip("/"))
    folders = [root / inside, *(root / above for above in inside.parents)]
    found = (read(folder) for folder in folders)
    return [math.ceil(cpus) for cpus in found if cpus is not None]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
