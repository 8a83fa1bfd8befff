"""Hydra sweeper ``elman``; Hydra 1.3 accepts sweepers only in this namespace.

Hydra imports this module at every start, so the work is done elsewhere: the command line sets
``ElmanSweeper.run`` (:mod:`elman.cli.sweep_command`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

RunSweep = Callable[[HydraContext, TaskFunction, DictConfig, Sequence[str]], None]


class ElmanSweeper(Sweeper):
    """Expands a sweep into jobs, checks all of them, launches them and prints one table."""

    run: ClassVar[RunSweep]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def sweep(self, arguments: list[str]) -> None:
        assert self.hydra_context is not None
        assert self.task_function is not None
        assert self.config is not None
        type(self).run(self.hydra_context, self.task_function, self.config, arguments)
