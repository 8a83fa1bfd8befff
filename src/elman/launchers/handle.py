"""A job on its way from a sweep through submitit, for a launcher on this machine or a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hydra.core.utils import JobReturn, JobStatus

from elman.launchers.command import JobCommand
from elman.launchers.job import SweepJob

if TYPE_CHECKING:
    from elman.launchers.gpus.executor import Process
    from elman.launchers.gpus.slot import Slot


@dataclass
class JobHandle:
    """One job in the queue.

    Args:
        number: Its number in the sweep.
        name: The same as text, with leading zeros: submitit's name of the job.
        label: Words that distinguish it from the other jobs.
        command: The command that it runs.
        status: How it ended: an exit status, negative for a signal; None if it never started.
        process: Its process, from the moment when the process waits for a slot.
        slot: Where it runs.
    """

    number: int
    name: str
    label: str
    command: JobCommand
    status: int | None = None
    process: Process | None = None
    slot: Slot | None = None
    running: bool = False
    since: float = 0.0
    requeues: int = 0
    submitted: bool = False
    said: str = field(default="", repr=False)


def job_handle(job: SweepJob, command: JobCommand) -> JobHandle:
    """Return a job of a sweep, ready for a queue, with the command of its process."""
    name = f"{job.number:0{max(2, len(str(job.total)))}d}"
    label = " ".join(job.swept or job.overrides)
    return JobHandle(job.number, name, label, command)


def job_return(job: SweepJob, handle: JobHandle | None) -> JobReturn:
    """Return how a job ended, in Hydra's form; the status is UNKNOWN if it never started.

    Args:
        job: The job.
        handle: The same on its way; None if it never came to its launcher's queue.
    """
    returned = JobReturn(overrides=list(job.overrides))
    if handle is not None and handle.status is not None:
        returned.return_value = handle.status
        returned.status = JobStatus.COMPLETED
    return returned
