"""Scores the held-out rows of a task at the trained length, and in the end at every length."""

from __future__ import annotations

import torch

from elman.base.signals import Interruption
from elman.data.tasks.batches import TaskData
from elman.distributed.team import ALONE, Team
from elman.evaluation.answers import accuracy_at, rows_at_once, score_answers
from elman.models.language_model import LanguageModel
from elman.sections.training import TrainConfig
from elman.training.display import Display
from elman.training.held_out import Scored


class HeldOutAnswers:
    """Scores rows of a task; it takes the place of :class:`~.held_out.HeldOut`.

    Args:
        train: Group ``train``.
        data: The task.
        device: Where the model lives.
        display: Shows progress to people.
    """

    def __init__(
        self, train: TrainConfig, data: TaskData, device: torch.device, display: Display
    ) -> None:
        self._train, self._data, self._device = train, data, device
        self._display = display

    @property
    def predicted(self) -> int:
        """Rows that a validation answers."""
        return self._data.config.val_rows

    @property
    def one_batch(self) -> int:
        """Rows of one batch."""
        return min(self.predicted, self._train.batch_size)

    def score(
        self,
        model: LanguageModel,
        interruption: Interruption,
        *,
        what: str = "validating",
        sample: int | None = None,
        team: Team = ALONE,
    ) -> Scored:
        """Return what the model answers at the trained length.

        Args:
            model: With the weights to score.
            interruption: A signal that it notes ends the scoring at once.
            what: The activity to show, for people.
            sample: Rows to answer; None means ``data.val_rows``.
            team: This process alone: a task is trained on one rank.

        Raises:
            Stopped: a signal came, so there is no number.
        """
        assert team.place.alone, "check_ranks refuses a task on several ranks"
        train = self._train
        rows = self.predicted if sample is None else sample
        batches = self._data.validation_rows(train.chunk_size, rows, train.batch_size)
        self._display.activity(what)
        try:
            found = score_answers(
                model,
                batches,
                self._device,
                train.precision,
                stoppable=interruption.stoppable,
            )
        finally:
            self._display.activity("")
        return Scored(found.bits, found.answered, found.accuracy)

    def by_length(self, model: LanguageModel, interruption: Interruption) -> dict[int, float]:
        """Return the accuracy at every length of ``data.lengths``.

        Raises:
            Stopped: a signal came, so there are no numbers.
        """
        train, shares = self._train, {}
        try:
            for length in sorted(set(self._data.config.lengths)):
                self._display.waiting(f"testing rows of {length:,}")
                rows = rows_at_once(train.batch_size, train.chunk_size, length)
                arguments = (model, self._data, length, rows, self._device, train.precision)
                shares[length] = accuracy_at(*arguments, stoppable=interruption.stoppable).accuracy
        finally:
            self._display.activity("")
        return shares

    def forecast(self, model: LanguageModel, step_seconds: float, steps_left: float) -> None:
        """Say nothing: a validation of a task is a few batches."""
