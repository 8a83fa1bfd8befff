"""Launcher ``elman_slurm``: the jobs of a sweep as an array on a SLURM cluster, one GPU each.

What runs in a job, where its files are and how it is requeued is submitit's, as on one machine.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import submitit
from hydra.core.utils import JobReturn
from omegaconf import DictConfig, OmegaConf

from elman.config import Mode
from elman.errors import ExitStatus, UserError
from elman.launch import session
from elman.launch.display import Display
from elman.launch.interrupts import Interrupts
from elman.launch.outcome import last_line, result_status
from elman.launch.planned import SweepJob, wants_gpu
from elman.launch.queued import Queued, job_return, queued_job
from elman.schema.launching import SlurmLauncher

POLL_SECONDS = 2.0
# So many looks without a trace of a job, and it is gone: a file system may be late.
_GONE_AFTER = 5
# Parameters that every executor of submitit knows; the others are SLURM's.
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


def launch(
    config: DictConfig,
    jobs: Sequence[SweepJob],
    settings: SlurmLauncher,
    parameters: Mapping[str, Any],
) -> list[JobReturn]:
    """Submit the jobs as one array, wait for all, and return how each ended.

    Raises:
        UserError: there is no SLURM here, or it refuses the array.
    """
    display = Display(jobs[0].total)
    executor = _executor(parameters, minutes_of(jobs, settings), jobs)
    queued = [queued_job(config, job) for job in jobs]
    try:
        submitted = executor.submit_array([one.job for one in queued])
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        lines = [line for line in str(error).splitlines() if line.startswith("sbatch:")]
        reason = lines[-1] if lines else str(error).splitlines()[0]
        raise UserError(f"launcher=slurm: {reason}; mend launcher.* or hydra.launcher.*") from None
    array = submitted[0].job_id.split("_")[0]
    display.say(f"SLURM job {array}: {len(jobs)} jobs")
    with Interrupts() as interrupts:
        _Watch(array, list(zip(queued, submitted, strict=True)), display).run(interrupts)
    display.close()
    if interrupts.count:
        session.current().status = ExitStatus.INTERRUPTED
    return [job_return(job, one) for job, one in zip(jobs, queued, strict=True)]


def refuse_without_folder(jobs: Sequence[SweepJob], mode: Mode) -> None:
    """Raise UserError if the jobs leave nothing where it could be found."""
    if not mode.makes_folder:
        raise UserError(
            f"launcher=slurm: mode={jobs[0].config.mode} leaves nothing in a folder; "
            "use launcher=gpus"
        )


def minutes_of(jobs: Sequence[SweepJob], settings: SlurmLauncher) -> int:
    """Return the time limit of every job of an array: that of the longest.

    Raises:
        UserError: a job says no minutes, and neither does the launcher.
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
    parameters: Mapping[str, Any], minutes: int, jobs: Sequence[SweepJob]
) -> submitit.AutoExecutor:
    given = {
        key: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for key, value in parameters.items()
        if value is not None
    }
    folder, timeouts = str(given.pop("submitit_folder")), given.pop("max_num_timeout")
    given["timeout_min"] = minutes
    if any(wants_gpu(job.config) for job in jobs):
        given.setdefault("gpus_per_node", 1)
    named = {key if key in _COMMON else f"slurm_{key}": value for key, value in given.items()}
    try:
        executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=timeouts)
    except RuntimeError:
        raise UserError(
            "launcher=slurm: there is no srun here; run it on a node that submits, or use "
            "launcher=gpus"
        ) from None
    executor.update_parameters(**named)
    return executor


class _Watch:
    """Follows an array until each of its jobs has ended."""

    def __init__(
        self, array: str, jobs: list[tuple[Queued, submitit.Job[int]]], display: Display
    ) -> None:
        self._array, self._jobs, self._display = array, jobs, display
        self._states: dict[str, str] = {}
        self._unseen: dict[str, int] = {}

    def run(self, interrupts: Interrupts) -> None:
        """Poll the queue and the result files until nothing is left to wait for."""
        open_jobs = list(self._jobs)
        while open_jobs:
            self._hand_on(interrupts)
            states = self._queue()
            open_jobs = [
                (one, job) for one, job in open_jobs if not self._over(one, job, states, interrupts)
            ]
            running = [one for one, job in open_jobs if one.running]
            self._display.show(running, (), len(open_jobs) - len(running))
            if open_jobs:
                time.sleep(POLL_SECONDS)

    def _over(
        self,
        queued: Queued,
        job: submitit.Job[int],
        states: Mapping[str, str] | None,
        interrupts: Interrupts,
    ) -> bool:
        """Note what has become of a job; return whether it has ended."""
        name, status = job.job_id, result_status(job.paths)
        state = None if states is None else states.get(name, "")
        self._say_state(queued, name, state)
        # A preempted job has a result too, until it is started again.
        final = status is not None and status != ExitStatus.INTERRUPTED
        self._unseen[name] = self._unseen.get(name, 0) + 1 if state == "" else 0
        if not final and self._unseen[name] < _GONE_AFTER:
            return False
        if status is None and not queued.since and not job.paths.stdout.exists():
            return True  # cancelled before it began
        queued.status = int(ExitStatus.FAILED) if status is None else status
        queued.said = last_line(job.paths)
        self._display.ended(queued)
        session.job_ended(queued.number, queued.status)
        return True

    def _say_state(self, queued: Queued, name: str, state: str | None) -> None:
        """Say that a job starts, or waits again."""
        before, self._states[name] = self._states.get(name, ""), state or ""
        if state == "RUNNING" and before != state:
            queued.running, queued.since = True, time.monotonic()
            self._display.started(queued)
            session.job_started(queued.number)
        if state == "PENDING" and queued.running:
            queued.running = False
            self._display.again(queued, held=False)
            session.job_waits(queued.number)

    def _queue(self) -> dict[str, str] | None:
        """Return the state of every job of the array that SLURM still has, None if it is mute."""
        asked = subprocess.run(
            ["squeue", "--noheader", "--array", "--format=%i %T", f"--jobs={self._array}"],
            capture_output=True,
            text=True,
        )
        if asked.returncode != 0:
            return {} if "Invalid job id" in asked.stderr else None
        return dict(line.split() for line in asked.stdout.splitlines())

    def _hand_on(self, interrupts: Interrupts) -> None:
        """First signal: nothing new starts, running jobs save and end. Second: cancel all."""
        for _ in interrupts.take():
            running = sum(one.running for one, _ in self._jobs if one.status is None)
            self._display.interrupted(running, interrupts.count)
            if interrupts.count > 1:
                self._scancel()
                continue
            self._scancel("--state=PENDING")
            self._scancel("--signal=TERM")

    def _scancel(self, *how: str) -> None:
        subprocess.run(["scancel", *how, self._array], capture_output=True)
