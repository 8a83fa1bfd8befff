"""Which files the jobs of a sweep read, if their globs or folders hold others, too."""

from __future__ import annotations

from collections.abc import Sequence

from elman.config.run_config import Mode
from elman.launchers.job import SweepJob
from elman.sections.training import DataConfig


def files_notes(jobs: Sequence[SweepJob], mode: Mode) -> list[str]:
    """Return a line for each choice of files among the jobs."""
    read = {
        repr(job.config.data): job.config.data
        for job in jobs
        if "data" in mode.reads and isinstance(job.config.data, DataConfig)
    }
    if not any(data.path or data.val_path for data in read.values()):
        return []
    from elman.data.batches import files_told

    lines = [files_told(data) for data in read.values()]
    return [f"files: {line}" for line in dict.fromkeys(lines) if line]
