"""Our launchers for Hydra; Hydra 1.3 accepts launchers only in this namespace.

Hydra imports this module at every start, so the work is done in :mod:`elman.launchers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from elman.launchers.request import Launched, LaunchRequest


class LocalLauncher(Launcher):
    """Runs the jobs of a sweep one after another, each in its own process."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Refuse: only elman's own sweeper checks the jobs before the first of them runs."""
        from elman.base.errors import UserError

        raise UserError(
            "hydra/sweeper: launcher=local, gpus and slurm run the jobs of hydra/sweeper=elman "
            "only; drop hydra/sweeper, or type hydra/launcher=basic"
        )

    def launch_jobs(self, request: LaunchRequest) -> Launched:
        """Run the jobs of a sweep."""
        from elman.launchers.local import launch

        return launch(request)


class GpusLauncher(LocalLauncher):
    """Runs one job per free GPU of this machine."""

    def launch_jobs(self, request: LaunchRequest) -> Launched:
        """Run the jobs of a sweep."""
        from elman.launchers.gpus.launcher import launch

        return launch(request)


class SlurmLauncher(LocalLauncher):
    """Runs the jobs as an array on a SLURM cluster; ``parameters`` are those of submitit."""

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters

    def launch_jobs(self, request: LaunchRequest) -> Launched:
        """Run the jobs of a sweep."""
        from elman.launchers.slurm import launch

        return launch(request, self.parameters)


LAUNCHERS = (GpusLauncher, LocalLauncher, SlurmLauncher)
"""The launchers that Hydra learns of."""
