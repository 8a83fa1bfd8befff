"""The one job function of every launcher that goes through submitit: on this machine or a cluster.

It is pickled, so it holds plain texts; it runs the command line in its own process. A requeued job
is the same function called again: it goes on in the folder that it finds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.errors import ExitStatus, UserError
from elman.launch.commands import ALONE
from elman.launch.quoting import quoted
from elman.launch.run_folder import CONFIG_FILE, RunLock, discard_folder

# On this signal submitit saves and requeues; NCCL has USR1 for itself.
_PREEMPTED = signal.SIGUSR2


@dataclass(frozen=True)
class SweptJob:
    """One job of a sweep.

    Args:
        arguments: Its command line, without its folder.
        folder: Its run folder, or None if its mode makes none.
        resumable: Whether its mode continues a run in its folder.
        flags: Those of the arguments that say where YAML files are found.
    """

    arguments: tuple[str, ...]
    folder: str | None
    resumable: bool
    flags: tuple[str, ...] = ()

    def __call__(self) -> int:
        """Run the job and return its exit status; a preempted one does not return."""
        import submitit

        try:
            _check_devices()
            with _signals() as (received, preempt):
                status = self._run()
        except UserError as error:
            print(f"elman: error: {error}")
            return int(ExitStatus.USER_ERROR)
        if status == ExitStatus.INTERRUPTED and _PREEMPTED in received and callable(preempt):
            try:
                preempt(_PREEMPTED, None)
            except submitit.core.utils.UncompletedJobError:
                return int(ExitStatus.TIMEOUT)
        return status

    def checkpoint(self) -> Any:
        """Return what submitit runs after a requeue: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)

    def command_line(self) -> list[str]:
        """Return the arguments with which it starts, or goes on in a folder that has begun.

        Raises:
            UserError: another process runs in its folder.
        """
        if self.folder is None:
            return list(self.arguments)
        folder = Path(self.folder)
        if self.resumable and (folder / CONFIG_FILE).exists():
            return [*self.flags, f"train.resume={quoted(self.folder)}", ALONE]
        if folder.exists():
            _set_aside(folder)
        return [*self.arguments, f"hydra.run.dir={quoted(self.folder)}"]

    def _run(self) -> int:
        from elman.cli import main

        return main(self.command_line())


def _set_aside(folder: Path) -> None:
    """Clear the place of a job that starts anew: what never began goes, the rest is renamed."""
    with RunLock(folder):
        discard_folder(folder)
    if folder.exists():
        number = 1 + len(list(folder.parent.glob(f"{folder.name}.earlier-*")))
        os.rename(folder, folder.with_name(f"{folder.name}.earlier-{number:03d}"))


def _check_devices() -> None:
    """On a cluster the job has what SLURM gave it, which must be one GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" and len(visible) > 1:
        raise UserError(f"this job sees {len(visible)} GPUs; use hydra.launcher.gpus_per_node=1")


@contextmanager
def _signals() -> Iterator[tuple[set[int], Any]]:
    """Let every signal end the job like Ctrl-C, and note which came.

    Training takes them over while it runs, to save first; this is what they do around it. Yields
    the signals that came, and what SIGUSR2 did before: submitit's requeueing.
    """
    from elman.training import signals

    signals.received.clear()
    with signals.ending() as before:
        yield signals.received, before[_PREEMPTED]
