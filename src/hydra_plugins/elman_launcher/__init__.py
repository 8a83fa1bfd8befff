"""Hydra launcher ``elman_local``; Hydra 1.3 accepts launchers only in this namespace.

Hydra imports this module at every start, so the work stands in :mod:`elman.launch.local`.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        from elman.launch.local import launch

        return launch(self.config, job_overrides, initial_job_idx)
