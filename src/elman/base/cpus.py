"""The CPUs that this process may use."""

from __future__ import annotations

import os


def usable_cpus() -> frozenset[int]:
    """Return the numbers of the CPUs that this process may run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return frozenset(range(os.cpu_count() or 1))
