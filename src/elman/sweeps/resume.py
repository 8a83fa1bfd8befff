"""``sweep.resume=<folder>``: which jobs of an earlier sweep run again, and which are left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable
from elman.config.run_config import Mode
from elman.launchers.job import SweepJob
from elman.launchers.places import keeps_queue
from elman.runs.state import read_result, recorded_status, still_running
from elman.sections.launching import LauncherConfig
from elman.sweeps.tuned import is_spent_trial


def jobs_left(
    jobs: Sequence[SweepJob], mode: Mode, tasks: Mapping[int, str], launcher: LauncherConfig
) -> tuple[list[SweepJob], dict[int, str]]:
    """Return the jobs of an earlier sweep that are to run, or to follow in a cluster's queue.

    It leaves out jobs that are ok and jobs that another process still runs. The second result has
    the names of the jobs to follow.
    """
    todo = _unfinished(jobs, mode)
    if len(todo) < len(jobs):
        print(f"{len(jobs) - len(todo)} of {len(jobs)} jobs are {_done(jobs)} already", flush=True)
    folders = {job.number: job.folder for job in todo if job.folder is not None}
    queued = _in_queue({n: task for n, task in tasks.items() if n in folders})
    adopts = keeps_queue(launcher)
    alone = {number: folder for number, folder in folders.items() if number not in queued}
    running = still_running(alone, mode.result_file, lambda line: print(line, flush=True))
    where = {number: f"still runs (pid {process})" for number, process in running.items()}
    if not adopts:
        where |= {number: f"is in SLURM's queue as {task}" for number, task in queued.items()}
    for number, what in where.items():
        again = f"elman -m {pasteable('sweep.resume', str(folders[number].parent))}"
        again += " launcher=slurm" if number in queued else ""
        print(
            f"job {number} {what} and is not started again; once it has ended, type {again}",
            flush=True,
        )
    # A job that was ending may be ok by now.
    left = [job for job in _unfinished(todo, mode) if job.number not in where]
    return left, queued if adopts else {}


def goes_on_by(folder: Path) -> str:
    """Return the last line of every sweep that is not complete."""
    command = f"elman -m {pasteable('sweep.resume', str(folder))}"
    return f"to run the jobs that are not ok again: {command}"


def _unfinished(jobs: Sequence[SweepJob], mode: Mode) -> list[SweepJob]:
    """Return the jobs whose result file does not say that they ended well."""
    found = [(job, read_result(job.folder, mode.result_file)) for job in jobs]
    ends = [(job, recorded_status(result)) for job, result in found]
    return [
        job
        for job, status in ends
        if status != RunStatus.OK and (status is None or not is_spent_trial(job, status))
    ]


def _done(jobs: Sequence[SweepJob]) -> str:
    """Return the word for jobs that do not run again: a trial is not tried twice."""
    return "done" if any(job.tuning is not None for job in jobs) else "ok"


def _in_queue(tasks: Mapping[int, str]) -> dict[int, str]:
    """Return the jobs that are still in a cluster's queue.

    Args:
        tasks: Names of the jobs there, by number.

    Raises:
        UserError: the cluster does not answer.
    """
    if not tasks:
        return {}
    from elman.launchers.slurm_queue import active_tasks

    try:
        return active_tasks(tasks)
    except FileNotFoundError:
        names = ", ".join(tasks.values())
        print(
            f"warning: there is no squeue here to ask whether SLURM still has {names}; one that "
            "starts meanwhile finds its folder taken and ends",
            flush=True,
        )
        return {}
