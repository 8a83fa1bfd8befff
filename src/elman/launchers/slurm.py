"""Launcher ``elman_slurm``: the jobs of a sweep as an array on a SLURM cluster.

The jobs that come into being while the sweep runs are an array for each answer. A job has one GPU,
or several with a task (a rank) for each.

submitit decides what a job runs, where its files are and how it is requeued, as on one machine.
"""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
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
from elman.launchers.request import JobLog, Launched, LaunchRequest, More
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

    Jobs of an earlier array that are still in the queue are followed, not submitted again. A sweep
    that grows has ``launcher.jobs`` places: it asks for jobs while none of its jobs waits in the
    queue.

    Args:
        request: The jobs.
        parameters: submitit's parameters, from ``hydra.launcher``.

    Raises:
        UserError: there is no SLURM here, or it refuses the array.
    """
    settings = request.settings
    assert isinstance(settings, SlurmLauncher)
    jobs = request.first_jobs(settings.jobs)
    if not jobs:
        return Launched([], interrupted=False)
    display = Display(jobs[-1].total, grows=request.grows)
    array = _Array(request, parameters, display)
    watch = _Watch(array.first(jobs), display, request.log)

    def more(number: int) -> list[SweepJob]:
        came = list(request.more(number))
        jobs.extend(came)
        return came

    with Interrupts() as interrupts:
        growth = _Growth(more, array.submit, settings.jobs, display) if request.grows else None
        watch.run(interrupts, growth)
    display.close()
    returns = [job_return(job, watch.handle_of(job)) for job in jobs]
    return Launched(returns, bool(interrupts.count))


_Followed = tuple[JobHandle, submitit.Job[int]]
"""A job of the sweep, and the same in SLURM's queue."""


class _Array:
    """Submits jobs of a request, as one array each time."""

    def __init__(
        self, request: LaunchRequest, parameters: Mapping[str, Any], display: Display
    ) -> None:
        assert isinstance(request.settings, SlurmLauncher)
        self._request, self._parameters, self._display = request, parameters, display
        self._settings = request.settings

    def first(self, jobs: Sequence[SweepJob]) -> list[_Followed]:
        """Submit those of the first jobs that are not in the queue yet; return all, in order."""
        adopted, executor = self._request.adopted, self._executor(jobs)
        fresh = self.submit([job for job in jobs if job.number not in adopted])
        found = {one.number: (one, task) for one, task in fresh}
        for job in jobs:
            if (name := adopted.get(job.number)) is not None:
                task = _attach(executor, name, self._settings.gpus_per_job)
                found[job.number] = (_handle(self._request, job, self._parameters), task)
        for number, name in adopted.items():
            self._display.say(
                f"job {number} is in SLURM's queue as {name}: followed, not started again"
            )
        return [found[job.number] for job in jobs]

    def submit(self, jobs: Sequence[SweepJob]) -> list[_Followed]:
        """Submit jobs as one array, and record their names in the queue.

        Raises:
            UserError: sbatch refuses the array.
        """
        if not jobs:
            return []
        handles = [_handle(self._request, job, self._parameters) for job in jobs]
        tasks = _submitted(self._executor(jobs), [one.command for one in handles])
        pairs = list(zip(handles, tasks, strict=True))
        self._request.log.submitted({one.number: task.job_id for one, task in pairs})
        self._display.total = max(self._display.total, jobs[-1].total)
        self._display.say(f"SLURM job {_array(tasks[0])}: {len(jobs)} jobs")
        return pairs

    def _executor(self, jobs: Sequence[SweepJob]) -> submitit.AutoExecutor:
        minutes = minutes_of(jobs, self._settings)
        return _executor(self._parameters, minutes, jobs, self._settings)


class _Growth:
    """Asks for the jobs that come into being while a sweep runs, and submits them.

    Args:
        more: Returns up to so many further jobs.
        submit: Submits jobs as one array.
        places: Most jobs in the queue at a time.
        display: Where a refusal is shown.
    """

    def __init__(
        self,
        more: More,
        submit: Callable[[Sequence[SweepJob]], list[_Followed]],
        places: int,
        display: Display,
    ) -> None:
        self._more, self._submit, self._places, self._display = more, submit, places, display
        self._refused: Sequence[SweepJob] = ()
        self._may_ask = True

    def grown(self, open_jobs: Sequence[_Followed], ended: bool) -> list[_Followed]:
        """Return further jobs, submitted, if the cluster could take any.

        A refused array is submitted again when a job has ended: a controller that is busy refuses
        arrays, too.

        Args:
            open_jobs: The jobs that have not ended.
            ended: Whether one has ended since the last call.

        Raises:
            UserError: sbatch refuses an array, and no job is left to wait for.
        """
        self._may_ask = self._may_ask or ended
        places = self._places - len(open_jobs)
        if not self._may_ask or places <= 0 or not all(one.running for one, _ in open_jobs):
            return []
        jobs = self._refused or self._more(places)
        self._may_ask = bool(jobs)
        try:
            submitted = self._submit(jobs)
        except UserError as error:
            if not open_jobs:
                raise
            self._display.say(f"{error}; {len(jobs)} jobs wait until another one has ended")
            self._refused, self._may_ask = jobs, False
            return []
        self._refused = ()
        return submitted


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

    def __init__(self, jobs: list[_Followed], display: Display, log: JobLog) -> None:
        self._jobs, self._display, self._log = jobs, display, log
        self._states: dict[str, str] = {}
        self._unseen: dict[str, int] = {}

    @property
    def _arrays(self) -> list[str]:
        return list(dict.fromkeys(_array(job) for _, job in self._jobs))

    def handle_of(self, job: SweepJob) -> JobHandle | None:
        """Return a job as it was followed; None if it was never submitted."""
        return next((one for one, _ in self._jobs if one.number == job.number), None)

    def run(self, interrupts: Interrupts, growth: _Growth | None) -> None:
        """Poll the queue and the result files until every job has ended and no other comes."""
        open_jobs = list(self._jobs)
        while open_jobs:
            self._hand_on(interrupts)
            states, before = queue_states(self._arrays), len(open_jobs)
            open_jobs = [
                (one, job) for one, job in open_jobs if not self._over(one, job, states, interrupts)
            ]
            if growth is not None and not interrupts.count:
                came = growth.grown(open_jobs, ended=len(open_jobs) < before)
                self._jobs += came
                open_jobs += came
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
