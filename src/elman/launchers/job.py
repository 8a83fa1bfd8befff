"""One job of a sweep, checked and not yet started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elman.base.errors import UserError
from elman.base.quoting import quoted
from elman.config.run_config import RunConfig
from elman.models.backends import REFERENCE
from elman.models.cells import registry


@dataclass(frozen=True)
class SweepJob:
    """One job of a sweep.

    Args:
        number: Its number, from 1.
        total: Number of jobs in the whole sweep, even if only a few of them run again; as far as it
            is known when the job is made, if the sweep still grows.
        overrides: The overrides that a user would type to run it alone.
        swept: Its overrides that differ between jobs.
        config: Its typed configuration.
        folder: Its run folder, or None if its mode makes none.
        tuning: What it is in a tuned comparison (arm, phase, values); None in any other sweep.
    """

    number: int
    total: int
    overrides: tuple[str, ...]
    swept: tuple[str, ...]
    config: RunConfig
    folder: Path | None = None
    tuning: Mapping[str, Any] | None = None

    @property
    def for_launcher(self) -> list[str]:
        """Its overrides and its folder, in the form that Hydra's own launchers expect too."""
        if self.folder is None:
            return list(self.overrides)
        folder, name = quoted(str(self.folder.parent)), quoted(self.folder.name)
        return [*self.overrides, f"hydra.sweep.dir={folder}", f"hydra.sweep.subdir={name}"]


def job_count(number: int, total: int, *, grows: bool) -> str:
    """Return a job's number as users read it: ``[3/24]``, or ``[3 of 24]`` if 24 may grow."""
    return f"[{number} of {total}]" if grows else f"[{number}/{total}]"


def refuse_shared(jobs_per_gpu: int, config: RunConfig) -> None:
    """Raise UserError if what a job finds depends on its speed, and it is to share its GPU."""
    if jobs_per_gpu == 1:
        return
    asked = f"launcher.jobs_per_gpu={jobs_per_gpu}"
    if config.mode in ("bench", "generate"):
        raise UserError(
            f"{asked}: mode={config.mode} measures speeds, and jobs on one GPU slow each other "
            "down; type launcher.jobs_per_gpu=1"
        )
    if config.mode == "train" and config.train.budget_minutes is not None:
        typed = "train.steps=<number>"
        typed = typed if config.train.minutes is None else f"train.minutes=null {typed}"
        raise UserError(
            f"{asked}: with train.minutes={config.train.budget_minutes:g} the steps of a job would "
            f"depend on the others on its GPU; type {typed}, or launcher.jobs_per_gpu=1"
        )


def wants_gpu(config: RunConfig) -> bool:
    """Whether a job takes a GPU if there is one."""
    if config.mode == "parity":
        if config.kernels.backend == REFERENCE:
            # On a GPU, plain PyTorch is checked only for cells that a run there computes by it.
            packages = (registry.cell(part.cell).package for part in config.model.parts())
            return config.baseline.allow_slow and any(one is not None for one in packages)
        return config.kernels.backend != "cpu"
    return device_of(config) not in (None, "cpu")


def device_of(config: RunConfig) -> str | None:
    """Return which device a job asks for (auto, cpu or cuda); None if its mode reads none."""
    sections = {
        "train": config.train,
        "eval": config.eval,
        "generate": config.generate,
        "bench": config.bench,
        "probe": config.probe,
    }
    section = sections.get(config.mode)
    return None if section is None else section.device
