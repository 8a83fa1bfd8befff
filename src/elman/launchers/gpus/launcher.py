"""Launcher ``elman_gpus``: puts the jobs of a sweep in a queue for the GPUs of this machine."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elman.kernels.threads import cpu_share
from elman.launchers.display import Display
from elman.launchers.gpus.executor import Executor
from elman.launchers.gpus.queue import Queue
from elman.launchers.gpus.shared import end_sharing
from elman.launchers.gpus.slots import machine_slots
from elman.launchers.handle import JobHandle, job_handle, job_return
from elman.launchers.interrupts import Interrupts
from elman.launchers.job import SweepJob, wants_gpu
from elman.launchers.ranks_command import RanksCommand
from elman.launchers.request import Launched, LaunchRequest
from elman.sections.launching import GpusLauncher


def launch(request: LaunchRequest) -> Launched:
    """Run the jobs in the slots of this machine, and return how each ended.

    A job that fails or is killed does not stop the others. A job that never started keeps the
    status UNKNOWN.

    Raises:
        UserError: the settings name a GPU that does not exist.
    """
    jobs, settings = request.first_jobs(), request.settings
    assert isinstance(settings, GpusLauncher)
    if not jobs:
        return Launched([], interrupted=False)
    display = Display(jobs[-1].total, grows=request.grows)
    wanted = any(wants_gpu(job.config) for job in jobs)
    slots = machine_slots(settings, wanted, display.say)
    with _folder(jobs) as folder:
        processes = len(slots) * settings.gpus_per_job
        executor = Executor(folder, _threads(processes), settings.detach)
        queued = [_handle(request, job, executor) for job in jobs]

        def more(number: int) -> list[JobHandle]:
            came = request.more(number)
            display.total = came[-1].total if came else display.total
            handles = [_handle(request, job, executor) for job in came]
            jobs.extend(came)
            queued.extend(handles)
            return handles

        queue = Queue(
            queued,
            slots,
            executor,
            display,
            request.log,
            60 * settings.wait_minutes,
            settings.save_seconds,
            more if request.grows else None,
        )
        with Interrupts() as interrupts:
            try:
                queue.run(interrupts)
            finally:
                end_sharing(slots)
        for one in queued if jobs[0].folder is None else ():
            _print_output(executor, one)
    returns = [job_return(job, one) for job, one in zip(jobs, queued, strict=True)]
    return Launched(returns, bool(interrupts.count))


def _handle(request: LaunchRequest, job: SweepJob, executor: Executor) -> JobHandle:
    """Return a job with the command of its process, which starts its ranks if it has several."""
    settings, handle = request.settings, job_handle(job, request.command_of(job))
    assert isinstance(settings, GpusLauncher)
    if settings.gpus_per_job > 1:
        handle.command = RanksCommand(
            **vars(handle.command),
            ranks=settings.gpus_per_job,
            end_seconds=settings.save_seconds,
            logs=str(executor.paths(handle.name).folder),
        )
    return handle


def _threads(processes: int) -> int | None:
    """Return each process's share of the threads; None for one alone, where torch decides."""
    return max(1, cpu_share() // processes) if processes > 1 else None


@contextmanager
def _folder(jobs: Sequence[SweepJob]) -> Iterator[Path]:
    """Yield the folder for submitit's files: the sweep's, or else a temporary one."""
    if jobs[0].folder is not None:
        yield jobs[0].folder.parent
        return
    with tempfile.TemporaryDirectory(prefix="elman-sweep-") as folder:
        yield Path(folder)


def _print_output(executor: Executor, job: JobHandle) -> None:
    """Print the output of a job that leaves nothing else."""
    paths = executor.paths(job.name)
    for path, stream in ((paths.stdout, sys.stdout), (paths.stderr, sys.stderr)):
        if path.exists() and (text := path.read_text(errors="replace").rstrip()):
            print(f"[{job.number}] {job.label}\n{text}", file=stream, flush=True)
