"""An earlier sweep, as its folder records it: the command, the jobs, and their configurations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.config.suites import parse_suite
from elman.launchers.command import ALONE
from elman.launchers.job import SweepJob
from elman.runs.folder import run_name
from elman.runs.recorded_job import KEY, recorded_jobs
from elman.sections.launching import SweepConfig
from elman.sweeps.suite_runs import ChosenSuite


@dataclass(frozen=True)
class EarlierSweep:
    """A sweep that a command goes on with.

    Args:
        folder: Its folder.
        key: The setting that names it: ``sweep.resume`` or ``sweep.add``.
        content: Content of its ``sweep.json``.
    """

    folder: Path
    key: str
    content: Mapping[str, Any]

    @property
    def grows(self) -> bool:
        """Whether the command adds jobs to it."""
        return self.key == "sweep.add"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The overrides that were typed for the jobs of its first command."""
        return tuple(self.content["arguments"])

    @property
    def claims(self) -> tuple[str, ...]:
        """The overrides that were typed about the sizes of its models."""
        return tuple(self.content["claims"])

    @property
    def first_command(self) -> str:
        """The command that started it."""
        return str(self.content.get("typed") or self.content["command"])

    @property
    def added(self) -> list[dict[str, Any]]:
        """The commands that added jobs to it: its first command does not give all its jobs."""
        return list(self.content.get("added") or [])

    @property
    def tune(self) -> dict[str, Any] | None:
        """What it has recorded of its tuning; None if it is no tuned comparison."""
        return self.content.get("tune")

    @property
    def names(self) -> list[str]:
        """The folder of each job, in the order of the jobs."""
        return [str(job["folder"]) for job in self.content["jobs"]]

    @property
    def overrides(self) -> list[tuple[str, ...]]:
        """The overrides of each job."""
        commands = [shlex.split(job["command"])[1:] for job in self.content["jobs"]]
        return [tuple(text for text in texts if text != ALONE) for texts in commands]

    @property
    def swept(self) -> list[tuple[str, ...]]:
        """The overrides that distinguish each job from the others."""
        return [tuple(job.get("swept") or ()) for job in self.content["jobs"]]

    @property
    def tasks(self) -> dict[int, str]:
        """The jobs that it submitted to a cluster, with their names in its queue."""
        jobs = self.content["jobs"]
        return {int(job["number"]): str(job["task"]) for job in jobs if job.get("task")}

    def jobs(self) -> list[SweepJob] | None:
        """Return its jobs as they were composed; None if an older version has not recorded them."""
        recorded = recorded_jobs(self.folder)
        names = self.names
        needed = ("sizes", "suite") if self.content.get("benchmark") else ("sizes",)
        complete = all(self.content.get(key) is not None for key in needed)
        if not complete or not all(name in recorded for name in names):
            return None
        return [
            SweepJob(
                number, len(names), one.overrides, swept, one.config, self.folder / name, one.tuning
            )
            for number, (name, swept) in enumerate(zip(names, self.swept, strict=True), 1)
            for one in [recorded[name]]
        ]

    def suite(self) -> ChosenSuite | None:
        """Return its suite as it was when the sweep began, or None."""
        name = self.content.get("benchmark")
        if name is None:
            return None
        return ChosenSuite(str(name), parse_suite(str(name), self.content["suite"]))

    def sizes(self) -> SweepConfig | None:
        """Return what it claims about the sizes of its models; None if that is not recorded."""
        recorded = self.content.get("sizes")
        return None if recorded is None else SweepConfig.model_validate(recorded)

    def check_same(self, configs: Sequence[RunConfig]) -> None:
        """Raise UserError unless jobs that were composed again are those of this sweep.

        A job's folder is named by the hash of its configuration.
        """
        names = self.names
        if len(names) != len(configs):
            raise UserError(
                f"{self.key}={self.folder}: that sweep had {len(names)} jobs and this command has "
                f"{len(configs)}; give only {self.key}, or start a new sweep: {self.first_command}"
            )
        for number, (old, config) in enumerate(zip(names, configs, strict=True), 1):
            new = f"{old.partition('_')[0]}_{run_name(config)}"
            if old != new:
                raise UserError(
                    f"{self.key}={self.folder}: job {number} was {old} and is {new} now, because a "
                    "setting or a YAML file has changed since; start a new sweep: "
                    f"{self.first_command}"
                )

    def check_not_grown_meanwhile(self) -> None:
        """Raise UserError if another command has added jobs since this record was read."""
        if read_sweep(self.folder, self.key).names != self.names:
            raise UserError(
                f"{self.key}={self.folder}: another command has added jobs meanwhile; type the "
                "command again"
            )


def read_sweep(folder: Path, key: str = "sweep.resume") -> EarlierSweep:
    """Return an earlier sweep.

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
        content: dict[str, Any] = {"claims": []} | json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(content["arguments"], list)
        assert isinstance(content["claims"], list)
        assert isinstance(content["jobs"], list)
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise UserError(f"{path}: cannot be read; start a new sweep") from None
    return EarlierSweep(folder, key, content)


def earlier_sweep(settings: SweepConfig) -> EarlierSweep | None:
    """Return the sweep that a command resumes or grows, or None.

    Raises:
        UserError: it cannot be read, or the settings contradict each other.
    """
    if settings.job is not None:
        raise UserError(f"{KEY}: runs one job of a sweep alone; drop -m")
    if settings.allow_changed_code and settings.add is None:
        raise UserError("sweep.allow_changed_code: read only with sweep.add; drop it")
    if settings.resume is not None and settings.add is not None:
        raise UserError(
            "sweep.add: does not go with sweep.resume; add the jobs first, and resume afterwards"
        )
    key, named = "sweep.resume", settings.resume
    if settings.add is not None:
        key, named = "sweep.add", settings.add
    if named == "":
        raise UserError(f"{key}=: names no folder; name a sweep's, as in {key}=outputs/...")
    return None if named is None else read_sweep(Path(named).expanduser().absolute(), key)
