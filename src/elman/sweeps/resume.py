"""``sweep.resume=<folder>``: an earlier sweep, of which only what is not ok runs again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elman.base.errors import RunStatus, UserError
from elman.base.quoting import pasteable
from elman.launchers.job import SweepJob
from elman.sections.launching import LauncherConfig

SWEEP_FILE = "sweep.json"
SUBMITTED = ".submitit"
"""Folder in that of a sweep with the pickles and logs of its jobs."""


def read_sweep(folder: Path) -> dict[str, Any]:
    """Return what ``sweep.json`` of an earlier sweep says.

    Raises:
        UserError: the folder is not that of a sweep.
    """
    path = folder / SWEEP_FILE
    if not path.is_file():
        what = "no such folder" if not folder.exists() else f"not a sweep (no {SWEEP_FILE} in it)"
        raise UserError(f"sweep.resume={folder}: {what}; sweeps are below outputs/, as *_sweep")
    try:
        # Sweeps of earlier versions have not recorded what they were told of sizes.
        found: dict[str, Any] = {"claims": []} | json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(found["arguments"], list)
        assert isinstance(found["claims"], list)
        assert isinstance(found["jobs"], list)
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise UserError(f"{path}: cannot be read; start the sweep anew") from None
    return found


def check_same(folder: Path, earlier: Mapping[str, Any], jobs: Sequence[SweepJob]) -> None:
    """Raise UserError unless the jobs, now composed again, are those of the earlier sweep.

    A job's folder is named by the hash of its configuration.
    """
    before = [str(job["folder"]) for job in earlier["jobs"]]
    now = [job.folder.name if job.folder else "" for job in jobs]
    typed = earlier.get("typed") or earlier["command"]
    if len(before) != len(now):
        raise UserError(
            f"sweep.resume={folder}: that sweep had {len(before)} jobs and this command has "
            f"{len(now)}; name nothing but sweep.resume, or start anew what was: {typed}"
        )
    for job, old, new in zip(jobs, before, now, strict=True):
        if old != new:
            raise UserError(
                f"sweep.resume={folder}: job {job.number} was {old} and is {new} now, because "
                f"a setting or a YAML file has changed since; start anew: {typed}"
            )


def unfinished(
    jobs: Sequence[SweepJob], results: Sequence[Mapping[str, Any] | None]
) -> list[SweepJob]:
    """Return the jobs whose result file does not say that they ended well."""
    pairs = zip(jobs, results, strict=True)
    return [job for job, result in pairs if (result or {}).get("status") != RunStatus.OK]


def goes_on_by(folder: Path) -> str:
    """Return the line with which every sweep ends that is not complete."""
    return f"run again what is not ok: elman -m {pasteable('sweep.resume', str(folder))}"


def recorded_tasks(earlier: Mapping[str, Any] | None) -> dict[int, str]:
    """Return the jobs that a sweep gave to a cluster, with their names in its queue."""
    jobs = (earlier or {}).get("jobs", [])
    return {int(job["number"]): str(job["task"]) for job in jobs if job.get("task")}


def in_queue(tasks: Mapping[int, str], launcher: LauncherConfig) -> dict[int, str]:
    """Return those of the jobs that a cluster's queue still has.

    Args:
        tasks: Their names there, by number.
        launcher: What runs the jobs now.

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
            f"warning: whether SLURM still has {names} cannot be asked here (no squeue); one that "
            "starts meanwhile finds its folder taken and ends",
            flush=True,
        )
        return {}
