"""Asks SLURM about the jobs of a sweep: which it still has, and how it ended the others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.runs.status import OutsideEnd

_ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY")
) | {"PREEMPTED", "REVOKED", "TIMEOUT"}
_CODE, _LIMIT = ExitStatus.FAILED, ExitStatus.TIMEOUT
# States in which SLURM itself ended a job; in other states the job ended by itself.
_BY_SLURM = {
    "CANCELLED": (_CODE, "cancelled", "it was cancelled in SLURM's queue, by scancel or an admin"),
    "TIMEOUT": (_LIMIT, "timeout", "SLURM killed it at its time limit; launcher.minutes sets it"),
    "DEADLINE": (_LIMIT, "timeout", "SLURM killed it at its deadline"),
    "PREEMPTED": (_CODE, "preempted", "SLURM took its node for another job and did not requeue it"),
    "NODE_FAIL": (_CODE, "node failed", "its node failed, and SLURM did not requeue it"),
    "BOOT_FAIL": (_CODE, "node failed", "its node did not start"),
    "OUT_OF_MEMORY": (
        ExitStatus.OUT_OF_MEMORY,
        "oom",
        "SLURM killed it because it ran out of main memory; launcher.mem_gb sets it",
    ),
}


def has_ended(state: str) -> bool:
    """Whether a job in this state will not run again; nor will one that SLURM has forgotten."""
    return not state or state in _ENDED


def queue_states(tasks: Iterable[str]) -> dict[str, str] | None:
    """Return the state of every job that SLURM still knows, by name; None if it does not answer.

    Args:
        tasks: Names of jobs, as ``4711_2``; the query covers their whole arrays.

    Raises:
        FileNotFoundError: there is no SLURM on this machine.
    """
    states: dict[str, str] = {}
    for array in dict.fromkeys(task.partition("_")[0] for task in tasks):
        answer = _asked("squeue", "--array", "--states=all", "--format=%i|%T", f"--jobs={array}")
        if answer.returncode == 0:
            states |= dict(line.split("|") for line in answer.stdout.split())
        elif "Invalid job id" not in answer.stderr:
            return None
    return states


def active_tasks(tasks: Mapping[int, str]) -> dict[int, str]:
    """Return the jobs that wait in SLURM's queue or run.

    Args:
        tasks: Names in the queue, by the number of the job.

    Raises:
        FileNotFoundError: there is no SLURM on this machine.
        UserError: SLURM does not answer.
    """
    states = queue_states(tasks.values())
    if states is None:
        raise UserError(
            "launcher=slurm: squeue does not answer, so nobody knows which jobs of the sweep still "
            "wait in its queue; type the same again when it does"
        )
    return {n: task for n, task in tasks.items() if not has_ended(states.get(task, ""))}


def outside_end(task: str, state: str) -> OutsideEnd | None:
    """Return how SLURM ended a job that left no result of its own, or None if it did not.

    Args:
        task: Its name.
        state: Its last state; if SLURM has forgotten it, this asks SLURM's accounting.
    """
    state = state or _accounted(task)
    return OutsideEnd(*_BY_SLURM[state]) if state in _BY_SLURM else None


def _accounted(task: str) -> str:
    """Return a job's last state from SLURM's accounting; many clusters have none."""
    try:
        answer = _asked("sacct", "-X", "--parsable2", "--format=State", f"--jobs={task}")
    except FileNotFoundError:
        return ""
    words = answer.stdout.split()  # CANCELLED by 1000
    return words[0] if answer.returncode == 0 and words else ""


def _asked(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([command, "--noheader", *arguments], capture_output=True, text=True)
