"""A job on its way from a sweep through submitit, for a launcher on this machine or a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from elman.cli import session
from elman.launchers.arguments import job_arguments
from elman.launchers.command import SweptJob
from elman.launchers.job import SweepJob

if TYPE_CHECKING:
    from elman.launchers.gpus.executor import Process
    from elman.launchers.gpus.slot import Slot


@dataclass
class Queued:
    """One job on its way through the queue.

    Args:
        number: Its number in the sweep.
        name: The same as text, with leading zeros: submitit's name of the job.
        label: What tells it from the others, for people.
        job: What it runs.
        status: How it ended: an exit status, negative for a signal; None if it never started.
        process: Its process, from the moment when that waits for a place.
        slot: Where it runs.
    """

    number: int
    name: str
    label: str
    job: SweptJob
    status: int | None = None
    process: Process | None = None
    slot: Slot | None = None
    running: bool = False
    since: float = 0.0
    requeues: int = 0
    submitted: bool = False
    said: str = field(default="", repr=False)


def queued_job(config: DictConfig, job: SweepJob) -> Queued:
    """Return a job of a sweep, ready for a queue."""
    name = f"{job.number:0{max(2, len(str(job.total)))}d}"
    label = " ".join(job.swept or job.overrides)
    return Queued(job.number, name, label, swept_job(config, job))


def job_return(job: SweepJob, queued: Queued) -> JobReturn:
    """Return how a job ended as Hydra wants it; the status UNKNOWN if it never started."""
    returned = JobReturn(overrides=list(job.overrides))
    if queued.status is not None:
        returned.return_value = queued.status
        returned.status = JobStatus.COMPLETED
    return returned


def swept_job(config: DictConfig, job: SweepJob) -> SweptJob:
    """Return what the process of a job runs, here or on a cluster."""
    return SweptJob(
        tuple(job_arguments(config, job.overrides)),
        str(job.folder) if job.folder else None,
        resumable=job.config.mode == "train",
        flags=tuple(session.current().config_flags),
    )
