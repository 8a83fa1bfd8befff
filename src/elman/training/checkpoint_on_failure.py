"""Saves what was trained before the data, the disk, the memory or another rank failed."""

from __future__ import annotations

from contextlib import suppress

import torch

from elman.distributed.team import ALONE
from elman.training.checkpoints.retention import SaveReason
from elman.training.display import Display
from elman.training.listeners.records import Records
from elman.training.listeners.saving import Saver
from elman.training.training_state import TrainingState


def checkpoint_on_failure(
    state: TrainingState, records: Records, saver: Saver, display: Display
) -> None:
    """Save a checkpoint of the newest whole step, without another rank.

    Args:
        state: What was trained.
        records: Records the last steps.
        saver: Saves.
        display: Shows what is saved.
    """
    tried = _alone if state.team.place.alone else _without_other_ranks
    if tried(state, records, saver) and saver.up_to_date:
        display.say(f"saved after step {state.step}")


def _alone(state: TrainingState, records: Records, saver: Saver) -> bool:
    state.blocked(drain=True)  # do not count a step that was not finite
    with suppress(OSError):
        records.flush()
    with suppress(torch.OutOfMemoryError):  # the first error says what did not fit
        saver.save(SaveReason.FAILURE)
    return True


def _without_other_ranks(state: TrainingState, records: Records, saver: Saver) -> bool:
    """Save on rank 0 the training done before another rank was lost; return whether it could.

    Where rank 0 does not have everything, the newest checkpoint stays what it was.
    """
    state.team.abandon()
    with suppress(OSError, RuntimeError):
        state.blocked(drain=True)
        if not state.team.writes or state.train.tbptt or not state.reduction.whole:
            return False
        state.rewind()
        with state.team.busy("saving"):
            state.team = ALONE
            records.flush()
            saver.save(SaveReason.FAILURE)
        return True
    return False
