"""The jobs of a sweep: which of them are new, their folders, and how an error names one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elman.base.errors import UserError
from elman.launchers.job import SweepJob
from elman.runs.folder import run_name


@dataclass(frozen=True)
class JobList:
    """The jobs of a sweep.

    Args:
        jobs: All of them, those from before first.
        wanted: Numbers of the jobs that this command asks for, whether they are new or not.
        before: How many jobs the sweep had.
        recorded: How many of the first ones it has recorded as they were composed.
    """

    jobs: list[SweepJob]
    wanted: frozenset[int]
    before: int = 0
    recorded: int = 0

    @classmethod
    def whole(cls, jobs: list[SweepJob], *, recorded: bool = False) -> JobList:
        """Return a sweep all of whose jobs are asked for."""
        wanted = frozenset(job.number for job in jobs)
        return cls(jobs, wanted, recorded=len(jobs) if recorded else 0)

    @property
    def asked(self) -> list[SweepJob]:
        """The jobs that this command asks for."""
        return [job for job in self.jobs if job.number in self.wanted]

    @property
    def unrecorded(self) -> list[SweepJob]:
        """The jobs whose configurations are still to be recorded."""
        return self.jobs[self.recorded :]

    @property
    def new(self) -> list[SweepJob]:
        """The jobs that the sweep did not have."""
        return [job for job in self.asked if job.number > self.before]


def in_sweep(job: SweepJob, folder: Path) -> SweepJob:
    """Return a job with its folder, in the folder of its sweep."""
    width = max(2, len(str(job.total)))
    return replace(job, folder=folder / f"{job.number:0{width}d}_{run_name(job.config)}")


@contextmanager
def named_job(number: int, total: int, overrides: Sequence[str]) -> Iterator[None]:
    """Add to an error which job of the sweep it is about."""
    try:
        yield
    except UserError as error:
        label = " ".join(overrides)
        named = "" if str(error).startswith(label) else f" ({label})"
        raise UserError(f"job {number} of {total}{named}: {error}") from error
