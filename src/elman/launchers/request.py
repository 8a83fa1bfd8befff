"""What a sweep hands to a launcher, and what the launcher tells it: no launcher knows a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from hydra.core.utils import JobReturn
from omegaconf import DictConfig

from elman.launchers.command import JobCommand, Start, job_arguments
from elman.launchers.job import SweepJob
from elman.runs.status import status_word
from elman.sections.launching import LauncherConfig


class JobLog(Protocol):
    """Notes what becomes of the jobs of a sweep."""

    def job_started(self, number: int) -> None:
        """Note that a job runs now."""

    def job_ended(self, number: int, code: int) -> str:
        """Note how a job ended, by its exit status or -signal; return the word for it."""

    def job_waits(self, number: int) -> None:
        """Note that a job that ran was stopped and will run again."""

    def submitted(self, tasks: Mapping[int, str]) -> None:
        """Note under which names jobs wait in a cluster's queue."""


class NoLog:
    """Notes nothing: of jobs that leave no folder."""

    def job_started(self, number: int) -> None:
        """Note nothing."""

    def job_ended(self, number: int, code: int) -> str:
        """Return the word for an exit status."""
        return status_word(code)

    def job_waits(self, number: int) -> None:
        """Note nothing."""

    def submitted(self, tasks: Mapping[int, str]) -> None:
        """Note nothing."""


@dataclass(frozen=True)
class LaunchRequest:
    """The jobs of a sweep that a launcher is to run.

    Args:
        config: The sweep's composed tree.
        jobs: The jobs, in their order.
        settings: Group ``launcher``.
        start: Runs a command line in the process that calls it; a job's process calls it.
        config_flags: Flags that a job's command needs to find the same YAML files.
        log: Where the launcher notes what becomes of the jobs.
        adopted: Jobs that a cluster still has from an earlier start, with their names there.
    """

    config: DictConfig
    jobs: Sequence[SweepJob]
    settings: LauncherConfig
    start: Start
    config_flags: tuple[str, ...] = ()
    log: JobLog = field(default_factory=NoLog)
    adopted: Mapping[int, str] = field(default_factory=dict)

    def command_of(self, job: SweepJob) -> JobCommand:
        """Return what the process of a job runs, here or on a cluster."""
        return JobCommand(
            tuple(job_arguments(self.config, job.overrides, self.config_flags)),
            str(job.folder) if job.folder else None,
            resumable=job.config.mode == "train",
            start=self.start,
            flags=self.config_flags,
        )


@dataclass(frozen=True)
class Launched:
    """How a launcher's jobs ended.

    Args:
        returns: Of every job, as Hydra wants it; the status UNKNOWN if it never started.
        interrupted: Whether a signal stopped the launcher.
    """

    returns: list[JobReturn]
    interrupted: bool


@runtime_checkable
class JobLauncher(Protocol):
    """A launcher of this package, in Hydra's clothes."""

    def launch_jobs(self, request: LaunchRequest) -> Launched:
        """Run the jobs and return how each ended."""


Launch = Callable[[LaunchRequest], Launched]
