"""Hydra's hook before a run: the last place where a wrong command leaves nothing behind."""

from __future__ import annotations

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class ElmanCallback(Callback):
    """Validates the job and makes its run folder before Hydra touches the disk."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Prepare the one job of this process."""
        from elman.cli import session
        from elman.config.compose import compose_tree, typed_overrides
        from elman.config.keys import UNTUNED, named_keys
        from elman.config.mistakes import explain_mistakes
        from elman.runs.prepare import prepare
        from elman.runs.recorded_job import take_recorded
        from elman.sweeps.alone import DRY_RUN, asks_for_ranks, is_dry, plan_alone, ranks_alone
        from elman.sweeps.settings import refuse_alone
        from elman.sweeps.suite_runs import refuse_without_run

        try:
            take_recorded(config)
            typed = typed_overrides(config, "task")
            with explain_mistakes(typed, compose_tree):
                ranks, dry = asks_for_ranks(config), is_dry(config)
                if not ranks:
                    own = [text for text in typed if text not in UNTUNED]
                    refuse_alone(named_keys(own) - {DRY_RUN})
                refuse_without_run(config, named_keys(typed))
                state = session.current()
                if ranks:
                    state.ranks = ranks_alone(config, state.config_flags, may_pack=not dry)
                if dry:
                    state.ranks = plan_alone(config, state.config_flags)
                if ranks or dry:
                    return
                state.job = prepare(config)
                state.job.config_flags = state.config_flags
                state.job.phases = state.phases
        except Exception as error:
            raise session.StopRun(error) from error
