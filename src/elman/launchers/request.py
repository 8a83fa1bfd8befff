"""What a sweep and its launcher exchange; a launcher knows nothing else of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hydra.core.utils import JobReturn

from elman.launchers.command import JobCommand, Start, job_arguments
from elman.launchers.job import SweepJob
from elman.runs.status import status_word
from elman.sections.launching import LauncherConfig

More = Callable[[int], Sequence[SweepJob]]
"""Returns up to so many further jobs of a sweep; an empty list if there is none now."""


def no_more(number: int) -> Sequence[SweepJob]:
    """Return no job: the jobs of a sweep are all known before the first one runs."""
    return ()


class JobLog(Protocol):
    """Records what becomes of the jobs of a sweep."""

    def job_started(self, number: int, place: str = "") -> None:
        """Note that a job runs now, and where: the names of its GPUs, if they are known."""

    def job_ended(self, number: int, code: int, said: str = "") -> str:
        """Note how a job ended, by its exit status or -signal, and what it said last.

        Return the word for that.
        """

    def job_waits(self, number: int) -> None:
        """Note that a running job was stopped and will run again."""

    def submitted(self, tasks: Mapping[int, str]) -> None:
        """Note the names of jobs in a cluster's queue."""


class NoLog:
    """Records nothing: for jobs that leave no folder."""

    def job_started(self, number: int, place: str = "") -> None:
        """Note nothing."""

    def job_ended(self, number: int, code: int, said: str = "") -> str:
        """Return the word for an exit status."""
        return status_word(code)

    def job_waits(self, number: int) -> None:
        """Note nothing."""

    def submitted(self, tasks: Mapping[int, str]) -> None:
        """Note nothing."""


@dataclass(frozen=True)
class LaunchRequest:
    """The jobs of a sweep that a launcher is to run.

    A sweep may grow while it runs. Its launcher calls ``more`` for as many jobs as could start now,
    and for one to wait beside each job that runs where the next process starts early. The ends of
    all earlier jobs are in ``log`` by then. After an empty answer it asks again once a job has
    ended. The sweep is over when no job runs or waits and the answer is empty. After a signal it
    asks no more.

    Args:
        jobs: The jobs, in their order; those of a sweep that grows may be none at its start.
        settings: Group ``launcher``.
        start: Runs a command line in the process that calls it; a job's process calls it.
        hydra: Overrides of Hydra's own settings that every job needs.
        config_flags: Flags that a job's command needs to find the same YAML files.
        log: Where the launcher records what becomes of the jobs.
        adopted: Jobs from before that are still in a cluster's queue, with their names there.
        more: Makes further jobs. They take GPUs if the first ones do.
    """

    jobs: Sequence[SweepJob]
    settings: LauncherConfig
    start: Start
    hydra: tuple[str, ...] = ()
    config_flags: tuple[str, ...] = ()
    log: JobLog = field(default_factory=NoLog)
    adopted: Mapping[int, str] = field(default_factory=dict)
    more: More = no_more

    @property
    def grows(self) -> bool:
        """Whether further jobs may come into being while the jobs run."""
        return self.more is not no_more

    def first_jobs(self, places: int = 1) -> list[SweepJob]:
        """Return the jobs; if there is none yet, ask for as many as there are places."""
        return list(self.jobs or self.more(places))

    def command_of(self, job: SweepJob) -> JobCommand:
        """Return the command that a job's process runs, here or on a cluster."""
        return JobCommand(
            tuple(job_arguments(self.hydra, job.overrides, self.config_flags)),
            str(job.folder) if job.folder else None,
            resumable=job.config.mode == "train",
            start=self.start,
            flags=self.config_flags,
            hydra=self.hydra,
        )


@dataclass(frozen=True)
class Launched:
    """How a launcher's jobs ended.

    Args:
        returns: Each job's return, in Hydra's form; its status is UNKNOWN if it never started.
            First those of the request's jobs, then those of further jobs in the order of the
            answers.
        interrupted: Whether a signal stopped the launcher.
    """

    returns: list[JobReturn]
    interrupted: bool


@runtime_checkable
class JobLauncher(Protocol):
    """A launcher of this package, as a Hydra plugin."""

    def launch_jobs(self, request: LaunchRequest) -> Launched:
        """Run the jobs and return how each ended."""


Launch = Callable[[LaunchRequest], Launched]
