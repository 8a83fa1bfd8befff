"""``sweep.resume=<folder>``: runs again those jobs of an earlier sweep that are not ok."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable
from elman.launchers.job import SweepJob
from elman.sections.launching import LauncherConfig


def read_sweep(folder: Path, key: str = "sweep.resume") -> dict[str, Any]:
    """Return the content of an earlier sweep's ``sweep.json``.

    Args:
        folder: Its folder.
        key: The setting that names it.

    Raises:
        UserError: the folder is not the folder of a sweep.
    """
    path = folder / run_files.SWEEP
    if not path.is_file():
        other = f"not a sweep (no {run_files.SWEEP} in it)"
        what = other if folder.exists() else "no such folder"
        raise UserError(f"{key}={folder}: {what}; sweeps are below outputs/, as *_sweep")
    try:
        # Sweeps of earlier versions have not recorded what was typed about sizes.
        found: dict[str, Any] = {"claims": []} | json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(found["arguments"], list)
        assert isinstance(found["claims"], list)
        assert isinstance(found["jobs"], list)
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise UserError(f"{path}: cannot be read; start a new sweep") from None
    return found


def check_same(
    folder: Path,
    earlier: Mapping[str, Any],
    jobs: Sequence[SweepJob],
    key: str = "sweep.resume",
) -> None:
    """Raise UserError unless the jobs, composed again, are the jobs of the earlier sweep.

    A job's folder is named by the hash of its configuration.
    """
    before = [str(job["folder"]) for job in earlier["jobs"]]
    now = [job.folder.name if job.folder else "" for job in jobs]
    typed = earlier.get("typed") or earlier["command"]
    if len(before) != len(now):
        raise UserError(
            f"sweep.resume={folder}: that sweep had {len(before)} jobs and this command has "
            f"{len(now)}; give only sweep.resume, or start a new sweep: {typed}"
        )
    for job, old, new in zip(jobs, before, now, strict=True):
        if old != new:
            raise UserError(
                f"{key}={folder}: job {job.number} was {old} and is {new} now, because "
                f"a setting or a YAML file has changed since; start a new sweep: {typed}"
            )


def unfinished(
    jobs: Sequence[SweepJob], results: Sequence[Mapping[str, Any] | None]
) -> list[SweepJob]:
    """Return the jobs whose result file does not say that they ended well."""
    pairs = zip(jobs, results, strict=True)
    return [job for job, result in pairs if (result or {}).get("status") != RunStatus.OK]


def goes_on_by(folder: Path) -> str:
    """Return the last line of every sweep that is not complete."""
    command = f"elman -m {pasteable('sweep.resume', str(folder))}"
    return f"to run the jobs that are not ok again: {command}"


def recorded_tasks(earlier: Mapping[str, Any] | None) -> dict[int, str]:
    """Return the jobs that a sweep submitted to a cluster, with their names in its queue."""
    jobs = (earlier or {}).get("jobs", [])
    return {int(job["number"]): str(job["task"]) for job in jobs if job.get("task")}


def in_queue(tasks: Mapping[int, str], launcher: LauncherConfig) -> dict[int, str]:
    """Return the jobs that are still in a cluster's queue.

    Args:
        tasks: Names of the jobs there, by number.
        launcher: The launcher that runs the jobs now.

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
