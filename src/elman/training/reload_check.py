"""Checks, when a run has ended, that what is saved predicts what the model in memory predicts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from elman.base.signals import Interruption, Stopped
from elman.distributed.team import ALONE
from elman.evaluation.metrics import TrainingClock
from elman.models.blocks import init
from elman.models.language_model import LanguageModel
from elman.training.checkpoints.store import Checkpoint, CheckpointError
from elman.training.display import Display
from elman.training.held_out import HeldOut
from elman.training.held_out_answers import HeldOutAnswers
from elman.training.training_state import TrainingState

_LARGEST_DIFFERENCE = 1e-3
"""Of two scores of the same weights, as a share of the score."""


def reload_difference(
    state: TrainingState,
    checkpoint: Checkpoint,
    new_model: Callable[[], LanguageModel],
    held_out: HeldOut | HeldOutAnswers,
    clock: TrainingClock,
    interruption: Interruption,
    display: Display,
) -> float | None:
    """Load the saved weights into a new model and score one batch with both models.

    Args:
        state: The model in memory.
        checkpoint: What is saved.
        new_model: Returns a model of the same form.
        held_out: Scores them.
        clock: The training clock, which stands still meanwhile.
        interruption: A signal skips the check, because everything of the run is on the disk.
        display: Shows that two models do not fit into memory.

    Returns:
        The difference of the scores in bits; None if they were not compared.

    Raises:
        CheckpointError: the two models predict differently.
    """
    if state.reduction.sharded:
        return None  # nobody holds the whole model
    sample = held_out.one_batch

    def score(model: LanguageModel) -> float:
        what = "checking the saved weights"
        return held_out.score(model, interruption, what=what, sample=sample, team=ALONE).bpb

    try:
        with clock.pause("checkpoint"):
            with init.zeros():
                reloaded = new_model()
            checkpoint.load_weights(reloaded)
            saved = score(reloaded)
            with state.optimizer.kept_weights():
                in_memory = score(state.model)
    except Stopped:
        return None
    except torch.OutOfMemoryError:  # everything of the run is on the disk
        display.say("the saved weights were not checked: two models do not fit in memory")
        return None
    difference = abs(saved - in_memory)
    if not difference <= _LARGEST_DIFFERENCE * in_memory:
        raise CheckpointError(
            f"{checkpoint.path}: the saved weights score {saved:.4f} bits per prediction and those "
            f"in memory {in_memory:.4f} on the same data"
        )
    return difference
