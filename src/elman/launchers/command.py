"""The command of one job of a sweep: as its process gets it, and as a user would type it.

Every launcher that uses submitit, on this machine or a cluster, runs :class:`JobCommand`. It is
pickled, so it holds only plain texts and names of functions. It runs the command line in its own
process. A requeued job calls the same object again, which continues in the folder that it finds.
"""

from __future__ import annotations

import glob
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from elman.base import signals
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, is_interrupted
from elman.base.phases import count_from_start_of_process
from elman.base.quoting import quoted, shell_line
from elman.base.whole_file import rename
from elman.launchers.outcome import ERROR
from elman.launchers.start_order import order_to_start
from elman.runs.folder import RunLock, discard_folder
from elman.runs.recorded_job import KEY, recorded_job
from elman.runs.state import has_begun, read_run_result

# Names the signal, without SIG, on which submitit saves and requeues.
_PREEMPT_VARIABLE = "SUBMITIT_PREEMPT_SIGNAL"
_SIGNAL_EARLY_SECONDS = 75.0  # the 60 s of sbatch and a margin for the save
# Hydra settings of the sweep itself, which its jobs must not get.
OF_THE_SWEEP = re.compile(r"hydra[./](mode|sweep|sweeper|launcher|run)\b")
# Makes a job run alone, even if one of its config files asks for a sweep.
ALONE = "hydra.mode=RUN"


class Start(Protocol):
    """Runs a command line in the calling process; pickled by its name."""

    def __call__(self, argv: Sequence[str], before_run: Callable[[], None]) -> int:
        """Return the exit status of ``elman <argv>``.

        Args:
            argv: The arguments, without the program's name.
            before_run: Called after everything is checked and imported; it returns when the job
                may run.
        """


@dataclass(frozen=True)
class JobCommand:
    """One job of a sweep.

    Args:
        arguments: Its command line, without its folder.
        folder: Its run folder, or None if its mode makes none.
        resumable: Whether its mode can continue a run in its folder.
        start: Runs a command line in this process.
        flags: The arguments that say where YAML files are found.
        save_seconds: How long before its time limit a cluster tells it to save.
        hydra: Its overrides of Hydra's own settings, which its recorded configuration lacks.
    """

    arguments: tuple[str, ...]
    folder: str | None
    resumable: bool
    start: Start
    flags: tuple[str, ...] = ()
    save_seconds: float = 0.0
    hydra: tuple[str, ...] = ()

    def __call__(self) -> int:
        """Run the job and return its exit status; a preempted one does not return."""
        import submitit

        count_from_start_of_process()
        before = self._steps() if self._goes_on() else 0
        try:
            self._check_devices()
            with _signals() as (received, preempt):
                status = self._run()
        except UserError as error:
            print(f"elman: error: {error}")
            return int(ExitStatus.USER_ERROR)
        order = preemption_signal()
        preempted = is_interrupted(status) and order in received
        if not preempted or not callable(preempt) or not self._requeues():
            return status
        if self._steps() <= before and near_limit(self.save_seconds):
            _timed_out("no step between its start and the order to save; not queued again")
            return int(ExitStatus.TIMEOUT)
        try:
            preempt(order, None)
        except submitit.core.utils.UncompletedJobError:
            _timed_out("every start that launcher.requeues allows is used up")
            return int(ExitStatus.TIMEOUT)
        return status

    def checkpoint(self) -> Any:
        """Return what submitit runs after a requeue: the same command."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)

    def command_line(self) -> list[str]:
        """Return the arguments that start it, or that continue it in a folder that it has begun.

        It starts as its sweep has recorded it, whatever YAML files say by now.

        Raises:
            UserError: another process runs in its folder.
        """
        if self.folder is None:
            return list(self.arguments)
        folder = Path(self.folder)
        if self._goes_on():
            return [*self.flags, f"train.resume={quoted(self.folder)}", ALONE]
        if folder.exists():
            _set_aside(folder)
        if recorded_job(folder) is not None:
            return [*self.flags, f"{KEY}={quoted(self.folder)}", *self.hydra, ALONE]
        return [*self.arguments, f"hydra.run.dir={quoted(self.folder)}"]

    def _goes_on(self) -> bool:
        """Whether its folder holds an earlier part of it."""
        return self.resumable and bool(self.folder) and has_begun(Path(self.folder or ""))

    def _steps(self) -> int:
        """Return the number of optimizer steps that the result in its folder records."""
        result = read_run_result(Path(self.folder)) if self.folder else None
        return 0 if result is None else result.steps or 0

    def _run(self) -> int:
        return self.start(self.command_line(), order_to_start())

    def _requeues(self) -> bool:
        """Whether this process has its job queued again after a preemption."""
        return True

    def _check_devices(self) -> None:
        """Check that a job on a cluster got exactly one GPU from SLURM.

        Raises:
            UserError: it got more.
        """
        seen = visible_devices()
        if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" and len(seen) > 1:
            raise UserError(
                f"this job sees {len(seen)} GPUs and uses one; type launcher.gpus_per_job="
                f"{len(seen)} to train one model on all of them, or hydra.launcher.gpus_per_node=1"
            )


def preemption_signal() -> signal.Signals:
    """Return the signal on which submitit has a job queued again: USR2 unless its user chose."""
    return signal.Signals[f"SIG{os.environ.get(_PREEMPT_VARIABLE, 'USR2')}"]


def visible_devices() -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names; none if it is empty or not set."""
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def near_limit(save_seconds: float) -> bool:
    """Whether SLURM tells a job to save because its time ends, not because another job needs it.

    SLURM sends that signal up to a minute early.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    asked = subprocess.run(
        ["squeue", "--noheader", "--format=%e", f"--jobs={job}"],
        env=os.environ | {"SLURM_TIME_FORMAT": "standard"},
        capture_output=True,
        text=True,
    )
    try:
        end = datetime.fromisoformat(asked.stdout.strip())
    except ValueError:  # there is no time limit, or SLURM does not answer
        return False
    return (end - datetime.now()).total_seconds() <= save_seconds + _SIGNAL_EARLY_SECONDS


def _timed_out(why: str) -> None:
    print(f"{ERROR}timeout: told to save at its time limit (launcher.minutes): {why}", flush=True)


def _set_aside(folder: Path) -> None:
    """Clear the folder of a job that starts anew: remove it if no run began, else rename it."""
    with RunLock(folder):
        discard_folder(folder)
    if folder.exists():
        number = 1 + len(list(folder.parent.glob(f"{glob.escape(folder.name)}.earlier-*")))
        rename(folder, folder.with_name(f"{folder.name}.earlier-{number:03d}"))


@contextmanager
def _signals() -> Iterator[tuple[set[int], Any]]:
    """Let every signal end the job like Ctrl-C, and record which came.

    While training runs, it handles the signals itself and saves first; this covers the time before
    and after. Yields the signals that came, and submitit's handler of its own: the requeue.
    """
    signals.received.clear()
    with signals.ending() as before:
        yield signals.received, before.get(preemption_signal())


def job_arguments(
    hydra: Sequence[str], overrides: Sequence[str], config_flags: Sequence[str]
) -> list[str]:
    """Return the arguments of one job, without its folder.

    Args:
        hydra: The overrides of Hydra's own settings that every job needs.
        overrides: The job's own overrides; those that belong to the sweep are left out.
        config_flags: Flags that say where YAML files are found.
    """
    own = [text for text in overrides if not OF_THE_SWEEP.match(text)]
    return [*config_flags, *own, *hydra, ALONE]


def job_command(hydra: Sequence[str], overrides: Sequence[str], config_flags: Sequence[str]) -> str:
    """Return the command that a user pastes to run one job of a sweep alone."""
    return shell_line(["elman", *job_arguments(hydra, overrides, config_flags)])
