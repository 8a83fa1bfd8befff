"""Hydra's launchers of ours; Hydra 1.3 accepts launchers only in this namespace.

Hydra imports this module at every start, so the work stands in :mod:`elman.launchers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LocalLauncher(Launcher):
    """Runs the jobs of a sweep one after another, each in its own process."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from elman.cli import session
        from elman.launchers.local import launch

        return launch(self.config, session.current().jobs)


class GpusLauncher(LocalLauncher):
    """Runs one job per free GPU of this machine."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from elman.cli import session
        from elman.launchers.gpus.launcher import launch
        from elman.sections import launching
        from elman.sweeps.settings import sweep_settings

        settings = sweep_settings(self.config).launcher
        assert isinstance(settings, launching.GpusLauncher)
        return launch(self.config, session.current().jobs, settings)


class SlurmLauncher(LocalLauncher):
    """Runs the jobs as an array on a SLURM cluster; ``parameters`` are those of submitit."""

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from elman.cli import session
        from elman.launchers.slurm import launch
        from elman.sections import launching
        from elman.sweeps.settings import sweep_settings

        settings = sweep_settings(self.config).launcher
        assert isinstance(settings, launching.SlurmLauncher)
        return launch(self.config, session.current().jobs, settings, self.parameters)
