"""Hydra sweeper ``elman``; Hydra 1.3 accepts sweepers only in this namespace.

Hydra imports this module at every start, so the work is done in :mod:`elman.sweeps.sweep`.
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
        from elman.base.exit_status import ExitStatus, is_interrupted
        from elman.cli import session
        from elman.modes.sweep_table import sweep_table_of
        from elman.sweeps.checks import check_sweep
        from elman.sweeps.jobs import planned_sweep, with_folder
        from elman.sweeps.request import sweep_request
        from elman.sweeps.sweep import sweep

        assert self.hydra_context is not None
        assert self.task_function is not None
        assert self.config is not None
        state = session.current()
        assert state.start is not None
        assert state.run is not None
        request = sweep_request(
            self.hydra_context,
            self.task_function,
            self.config,
            arguments,
            argv=state.argv,
            config_flags=state.config_flags,
            start=state.start,
            run=state.run,
            table_of=sweep_table_of,
        )
        plan = planned_sweep(request)
        notes = check_sweep(request, plan)
        status = sweep(request, with_folder(request, plan), notes)
        # One of Hydra's own launchers has left the status of its last job here.
        if state.status is ExitStatus.OK or is_interrupted(status):
            state.status = status
