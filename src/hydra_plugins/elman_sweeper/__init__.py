"""Hydra sweeper ``elman``; Hydra 1.3 accepts sweepers only in this namespace.

Hydra imports this module at every start, so the work stands in :mod:`elman.sweeps.sweep`.
"""

from __future__ import annotations

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ElmanSweeper(Sweeper):
    """Expands a sweep into jobs, checks all of them, launches them and prints one table."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def sweep(self, arguments: list[str]) -> None:
        from elman.sweeps.sweep import sweep

        assert self.hydra_context is not None
        assert self.config is not None
        sweep(self.hydra_context, self.task_function, self.config, arguments)
