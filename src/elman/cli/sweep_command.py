"""What Hydra's sweeper does for ``elman -m``; the command line hands it to the plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig


def run_sweep(
    hydra_context: HydraContext,
    task_function: TaskFunction,
    config: DictConfig,
    arguments: Sequence[str],
) -> None:
    """Plan the sweep, check all its jobs, launch them, and leave its status in the session."""
    from elman.base.exit_status import ExitStatus, is_interrupted
    from elman.cli import session
    from elman.modes.sweep_table import sweep_table_of
    from elman.sweeps.checks import check_sweep
    from elman.sweeps.jobs import planned_sweep, with_folder
    from elman.sweeps.request import sweep_request
    from elman.sweeps.sweep import sweep

    state = session.current()
    assert state.start is not None
    assert state.run is not None
    request = sweep_request(
        hydra_context,
        task_function,
        config,
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
