"""Whether the GPU of this process is shared with other jobs of its sweep. Imports no torch."""

from __future__ import annotations

import os

VARIABLE = "ELMAN_JOBS_PER_GPU"
"""Environment variable of a job that shares its GPU: ``launcher.jobs_per_gpu``."""


def jobs_per_gpu() -> int:
    """Return how many jobs of the sweep may use the GPU of this process at a time, this one too."""
    return int(os.environ.get(VARIABLE, "1"))


def jobs_on(device_type: str) -> int | None:
    """Return :func:`jobs_per_gpu` of a run on a device of this type; None if that is no GPU."""
    return jobs_per_gpu() if device_type == "cuda" else None
