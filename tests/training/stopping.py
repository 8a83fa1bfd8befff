"""Ends a run as a kill does: after a checkpoint, in the middle of everything."""

from __future__ import annotations

import pytest

from elman.training.checkpoints.retention import SaveReason
from elman.training.listeners.saving import Saver
from elman.training.moments import Moment

WORDS = "stopped by the test"


def stop_after(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let every run save its ``step``-th step and then fail."""
    between_steps = Saver.between_steps

    def stop(saver: Saver, moment: Moment) -> bool:
        took = between_steps(saver, moment)
        if saver._state.step == step:
            saver.save(SaveReason.STEPS)
            raise RuntimeError(WORDS)
        return took

    patch.setattr(Saver, "between_steps", stop)
