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
        from elman.config.compose import typed_overrides
        from elman.config.wording import in_our_words
        from elman.runs.prepare import prepare

        try:
            with in_our_words(typed_overrides(config, "task")):
                session.current().job = prepare(config)
        except Exception as error:
            raise session.Halt(error) from error
