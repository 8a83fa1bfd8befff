"""Launcher ``elman_slurm``: the jobs of a sweep as an array on a SLURM cluster.

A job has one GPU, or several with a task (a rank) for each.

submitit decides what a job runs, where its files are and how it is requeued, as on one machine.
"""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Any

import submitit
from omegaconf import OmegaConf

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, is_interrupted
from elman.config.run_config import Mode
from elman.launchers.command import JobCommand
from elman.launchers.display import Display
from elman.launchers.handle import JobHandle, job_handle, job_return
from elman.launchers.interrupts import Interrupts
from elman.launchers.job import SweepJob, wants_gpu
from elman.launchers.outcome import ERROR, last_line, result_status, telling
from elman.launchers.request import JobLog, Launched, LaunchRequest
from elman.launchers.slurm_queue import has_ended, outside_end, queue_states
from elman.launchers.slurm_rank import SlurmRankCommand, rank_statuses
from elman.runs.status import OutsideEnd, status_word
from elman.sections.launching import SlurmLauncher

POLL_SECONDS = 2.0
# A job is gone after this many looks without a trace of it: a file system may be late.
_GONE_AFTER = 5
# sbatch: "the signal may be sent up to 60 seconds earlier than specified".
_SIGNAL_EARLY_SECONDS = 60
# Parameters that every executor of submitit knows; the other parameters are SLURM's.
_COMMON = (
    "timeout_min",
    "cpus_per_task",
    "gpus_per_node",
    "tasks_per_node",
    "mem_gb",
    "nodes",
    "name",
    "stderr_to_stdout",
)


def launch(request: LaunchRequest, parameters: Mapping[str, Any]) -> Launched:
    """Submit the jobs as one array, wait for all, and return how each ended.

    Jobs of an earlier array that are still in the queue are followed, not submitted again.

    Args:
        request: The jobs.
        parameters: submitit's parameters, from ``hydra.launcher``.

    Raises:
        UserError: there is no SLURM here, or it refuses the array.
    """
    jobs, settings = request.jobs, request.settings
    assert isinstance(settings, SlurmLauncher)
    display = Display(jobs[0].total)
    executor = _executor(parameters, minutes_of(jobs, settings), jobs, settings)
    queued = [_handle(request, job, parameters) for job in jobs]
    ranks = settings.gpus_per_job
    tasks = {number: _attach(executor, name, ranks) for number, name in request.adopted.items()}
    if fresh := [one for one in queued if one.number not in tasks]:
        submitted = _submitted(executor, [one.command for one in fresh])
        tasks |= {one.number: job for one, job in zip(fresh, submitted, strict=True)}
        request.log.submitted({one.number: tasks[one.number].job_id for one in fresh})
        display.say(f"SLURM job {_array(submitted[0])}: {len(fresh)} jobs")
    for number, name in request.adopted.items():
        display.say(f"job {number} is in SLURM's queue as {name}: followed, not started again")
    with Interrupts() as interrupts:
        _Watch([(one, tasks[one.number]) for one in queued], display, request.log).run(interrupts)
    display.close()
    returns = [job_return(job, one) for job, one in zip(jobs, queued, strict=True)]
    return Launched(returns, bool(interrupts.count))


def _handle(request: LaunchRequest, job: SweepJob, parameters: Mapping[str, Any]) -> JobHandle:
    """Return a job whose command knows how long before its limit SLURM tells it to save."""
    seconds = float(parameters["signal_delay_s"])
    command = replace(request.command_of(job), save_seconds=seconds)
    settings = request.settings
    assert isinstance(settings, SlurmLauncher)
    if settings.gpus_per_job > 1:
        command = SlurmRankCommand(
            **vars(command),
            ranks=settings.gpus_per_job,
            nodes=settings.nodes,
            on_gpus=wants_gpu(job.config),
        )
    return job_handle(job, command)


def _attach(executor: submitit.AutoExecutor, name: str, ranks: int) -> submitit.Job[int]:
    """Return a job that was submitted by an earlier command."""
    return submitit.SlurmJob(folder=executor.folder, job_id=name, tasks=list(range(ranks)))


def _submitted(
    executor: submitit.AutoExecutor, jobs: Sequence[JobCommand]
) -> list[submitit.Job[int]]:
    """Submit jobs as one array; a refused array leaves nothing behind.

    Raises:
        UserError: sbatch refuses the array.
    """
    place = submitit.core.utils.JobPaths.get_first_id_independent_folder(executor.folder)
    before = set(place.iterdir()) if place.is_dir() else set()
    try:
        with redirect_stderr(io.StringIO()):  # submitit also prints what it raises
            tasks: list[submitit.Job[int]] = executor.submit_array(jobs)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        for path in set(place.iterdir()) - before:
            path.unlink()
        if not before:
            place.rmdir()
        lines = [line for line in str(error).splitlines() if line.startswith("sbatch:")]
        reason = lines[-1] if lines else str(error).splitlines()[0]
        raise UserError(f"launcher=slurm: {reason}; fix launcher.* or hydra.launcher.*") from None
    return tasks


def _array(job: submitit.Job[int]) -> str:
    return str(job.job_id).partition("_")[0]


def refuse_without_slurm() -> None:
    """Raise UserError if no jobs can be submitted from this machine."""
    if shutil.which("srun") is None:
        raise UserError(
            "launcher=slurm: there is no srun here; run it on a node that submits, or use "
            "launcher=gpus"
        )


def limit_note(jobs: Sequence[SweepJob], settings: SlurmLauncher, save_seconds: int) -> str | None:
    """Return a note if all starts of a job together are too short for its training, else None.

    Args:
        jobs: The jobs.
        settings: Settings of the launcher.
        save_seconds: How long before the limit a job is told to save.

    Raises:
        UserError: every start of a job would be told to save at once.
    """
    minutes = minutes_of(jobs, settings)
    left = 60 * minutes - save_seconds - _SIGNAL_EARLY_SECONDS
    if left <= 0:
        enough = (save_seconds + _SIGNAL_EARLY_SECONDS) // 60 + 1
        raise UserError(
            f"launcher.minutes: with a limit of {minutes} min a job is told to save at its start: "
            f"launcher.save_seconds={save_seconds} s before the end, and SLURM is up to "
            f"{_SIGNAL_EARLY_SECONDS} s early; type launcher.minutes={enough} or more, or lower "
            "launcher.save_seconds"
        )
    longest = max((job.config.train.budget_minutes or 0.0 for job in jobs), default=0.0)
    starts = settings.requeues + 1
    if jobs[0].config.mode != "train" or starts * left / 60 >= longest:
        return None
    return (
        f"note: the longest job trains {longest:g} min, and {starts} starts (launcher.requeues="
        f"{settings.requeues}) of {left / 60:.1f} min before it must save (a limit of {minutes} "
        f"min, launcher.save_seconds={save_seconds}) make {starts * left / 60:.1f} min: it will "
        "end as timeout; raise launcher.minutes or launcher.requeues"
    )


def refuse_without_folder(jobs: Sequence[SweepJob], mode: Mode) -> None:
    """Raise UserError if the jobs leave no results in a folder."""
    if not mode.makes_folder:
        raise UserError(
            f"launcher=slurm: mode={jobs[0].config.mode} leaves nothing in a folder; "
            "use launcher=gpus"
        )


def minutes_of(jobs: Sequence[SweepJob], settings: SlurmLauncher) -> int:
    """Return the time limit of every job of an array: the limit of the longest.

    Raises:
        UserError: neither a job nor the launcher sets minutes.
    """
    if settings.minutes is not None:
        return settings.minutes
    budgets = [
        job.config.train.budget_minutes if job.config.mode == "train" else None for job in jobs
    ]
    longest = 0.0
    for job, minutes in zip(jobs, budgets, strict=True):
        if minutes is None:
            raise UserError(
                f"launcher.minutes: job {job.number} has no train.minutes to take a time limit "
                "from; add launcher.minutes=60"
            )
        longest = max(longest, minutes)
    return math.ceil(longest) + settings.margin


def _executor(
    parameters: Mapping[str, Any],
    minutes: int,
    jobs: Sequence[SweepJob],
    settings: SlurmLauncher,
) -> submitit.AutoExecutor:
    options: dict[str, Any] = {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in parameters.items()
        if value is not None
    }
    folder, timeouts = str(options.pop("submitit_folder")), options.pop("max_num_timeout")
    options["timeout_min"] = minutes
    if settings.gpus_per_job > 1:
        options["tasks_per_node"], options["nodes"] = settings.gpus_per_node, settings.nodes
        # A rank that has failed ends the others, which would wait for it.
        named_by_user: list[Any] = options.get("srun_args") or []
        options["srun_args"] = [*named_by_user, "--kill-on-bad-exit=1"]
    if any(wants_gpu(job.config) for job in jobs):
        options.setdefault("gpus_per_node", settings.gpus_per_node)
    named = {key if key in _COMMON else f"slurm_{key}": value for key, value in options.items()}
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=timeouts)
    executor.update_parameters(**named)
    return executor


def _ended_rank(job: submitit.Job[int], gone: bool) -> tuple[int, int | None]:
    """Return the rank that tells how its job ended, and its exit status; None if not known yet."""
    if job.num_tasks == 1:
        return 0, result_status(job.paths)
    paths = [job.task(number).paths for number in range(job.num_tasks)]
    statuses = rank_statuses(paths, gone)
    if statuses is None:
        return 0, None
    rank = telling(statuses)
    return rank, statuses[rank]


def _last_words(job: submitit.Job[int], rank: int, status: int) -> str:
    """Return the last thing that a job said, or which of its ranks a signal killed."""
    if status < 0:
        return f"{ERROR}rank {rank} was {status_word(status)}; the other ranks were ended"
    said = last_line(job.task(rank).paths)
    return said if rank == 0 else f"{ERROR}rank {rank}: {said.removeprefix(ERROR)}"


class _Watch:
    """Follows jobs in SLURM's queue until each has ended."""

    def __init__(
        self, jobs: list[tuple[JobHandle, submitit.Job[int]]], display: Display, log: JobLog
    ) -> None:
        self._jobs, self._display, self._log = jobs, display, log
        self._arrays = list(dict.fromkeys(_array(job) for _, job in jobs))
        self._states: dict[str, str] = {}
        self._unseen: dict[str, int] = {}

    def run(self, interrupts: Interrupts) -> None:
        """Poll the queue and the result files until every job has ended."""
        open_jobs = list(self._jobs)
        while open_jobs:
            self._hand_on(interrupts)
            states = queue_states(self._arrays)
            open_jobs = [
                (one, job) for one, job in open_jobs if not self._over(one, job, states, interrupts)
            ]
            running = [one for one, job in open_jobs if one.running]
            self._display.show(running, (), len(open_jobs) - len(running))
            if open_jobs:
                time.sleep(POLL_SECONDS)

    def _over(
        self,
        handle: JobHandle,
        job: submitit.Job[int],
        states: Mapping[str, str] | None,
        interrupts: Interrupts,
    ) -> bool:
        """Note what has become of a job; return whether it has ended."""
        name = job.job_id
        state = None if states is None else states.get(name, "")
        self._say_state(handle, name, state)
        gone = state is not None and has_ended(state)
        rank, status = _ended_rank(job, gone)
        # A preempted job also has a result, until it starts again.
        final = status is not None and not is_interrupted(status)
        self._unseen[name] = self._unseen.get(name, 0) + 1 if gone else 0
        if not final and self._unseen[name] < _GONE_AFTER:
            return False
        outside = None if final else outside_end(name, state or "")
        if status is None and self._never_began(handle, job, outside, interrupts):
            return True
        # Our own second signal cancels as well: a job that had saved by then was interrupted.
        if outside is not None and not (interrupts.count and status is not None):
            handle.status, handle.said = outside, f"{ERROR}{outside.word}: {outside.reason}"
        else:
            handle.status = int(ExitStatus.FAILED) if status is None else status
            handle.said = _last_words(job, rank, handle.status)
        word = self._log.job_ended(handle.number, handle.status, handle.said)
        self._display.ended(handle, word)
        return True

    @staticmethod
    def _never_began(
        handle: JobHandle,
        job: submitit.Job[int],
        outside: OutsideEnd | None,
        interrupts: Interrupts,
    ) -> bool:
        """Whether a job left the queue before it started, and nobody outside cancelled it."""
        if handle.since or job.paths.stdout.exists():
            return False
        return outside is None or bool(interrupts.count)

    def _say_state(self, handle: JobHandle, name: str, state: str | None) -> None:
        """Print that a job starts, or waits again."""
        before, self._states[name] = self._states.get(name, ""), state or ""
        if state == "RUNNING" and before != state:
            handle.running, handle.since = True, time.monotonic()
            self._display.started(handle)
            self._log.job_started(handle.number)
        if state == "PENDING" and handle.running:
            handle.running = False
            self._display.again(handle, held=False)
            self._log.job_waits(handle.number)

    def _hand_on(self, interrupts: Interrupts) -> None:
        """First signal: no job starts any more, running jobs save and end. Second: cancel all."""
        for _ in interrupts.take():
            running = sum(one.running for one, _ in self._jobs if one.status is None)
            self._display.interrupted(running, interrupts.count)
            if interrupts.count > 1:
                self._scancel()
                continue
            self._scancel("--state=PENDING")
            self._scancel("--signal=TERM")

    def _scancel(self, *how: str) -> None:
        subprocess.run(["scancel", *how, *self._arrays], capture_output=True)
