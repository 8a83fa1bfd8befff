"""The held-out windows of a run: scored, with how far it is, and foretold where that is long."""

from __future__ import annotations

import math
import time

import torch

from elman.base.signals import Interruption
from elman.config.run_config import RunConfig
from elman.data.batches import Data
from elman.data.windows import validation_batches, validation_windows
from elman.evaluation.validation import score
from elman.models.language_model import LanguageModel
from elman.training.display import WAIT_SECONDS, Display, duration

_WORTH_SAYING_SECONDS = 10.0
# Of each row of one batch, to learn the speed of a forward pass.
_TRIED_BYTES = 32


class HeldOut:
    """Scores the windows of ``val_bpb``.

    Args:
        config: The run's configuration.
        data: The open data.
        device: Where the model lives.
        display: What people see.
    """

    def __init__(
        self, config: RunConfig, data: Data, device: torch.device, display: Display
    ) -> None:
        self._config, self._data, self._device = config, data, device
        self._display = display
        self._seconds: float | None = None

    @property
    def predicted(self) -> int:
        """Bytes that a validation predicts: fewer than asked for if the held-out tail is short."""
        return self._bytes(None)

    def score(
        self,
        model: LanguageModel,
        interruption: Interruption,
        *,
        what: str = "validating",
        sample: int | None = None,
    ) -> tuple[float, int]:
        """Return (bits per byte, predicted bytes) of the windows.

        Args:
            model: With the weights to score.
            interruption: Ends it at once.
            what: What it is done for, for people.
            sample: Bytes to predict; None is ``data.val_sample``, the definition of ``val_bpb``.

        Raises:
            Stopped: a signal came; there is no number then.
        """
        total, began = self._bytes(sample), time.perf_counter()
        if sample is None and self._seconds is not None and self._seconds >= WAIT_SECONDS:
            self._display.waiting(f"{what}, about {duration(self._seconds)}", every=0)
        else:
            self._display.activity(f"{what} 0%")

        def show(predicted: int) -> None:
            left = (time.perf_counter() - began) * (total - predicted) / predicted
            if predicted < total:
                self._display.waiting(f"{what} {predicted / total:.0%}, {duration(left)} left")

        train = self._config.train
        try:
            found = score(
                model,
                validation_batches(self._data, *self._windows(sample), train.batch_size),
                self._device,
                train.precision,
                show,
                interruption.stoppable,
            )
        finally:
            self._display.activity("")
        if sample is None:
            self._seconds = time.perf_counter() - began
        return found

    def foretell(self, model: LanguageModel, step_seconds: float, steps_done: int) -> None:
        """Say before the first step if validating will take longer than training.

        The discarded step bounds a validation from above: it went backward, too, and may have
        compiled. Only if that is too long is a piece of a validation tried.

        Args:
            model: The model.
            step_seconds: Time of one optimizer step, at most.
            steps_done: Steps of earlier sessions.
        """
        train, data = self._config.train, self._config.data
        training = self._training_seconds(step_seconds, steps_done)
        steps = training / max(step_seconds, 1e-6)
        times = 1 + (int(steps) // train.val_every if train.val_every else 0)
        windows = self._bytes(None) // data.val_window
        passes = math.ceil(windows / train.batch_size) * data.val_window / train.chunk_size
        too_long = max(training, _WORTH_SAYING_SECONDS)
        if times * passes * step_seconds / train.grad_accum <= too_long:
            return
        self._seconds = self._tried(model)
        if times * self._seconds <= too_long:
            return
        each = self._seconds / windows
        fitting = min(windows - 1, int(training / times / each))
        takes = f"{times} validations take" if times > 1 else "validating takes"
        line = f"{takes} about {duration(times * self._seconds)}, longer than the training "
        line += f"(about {duration(training)}); "
        if fitting >= 1:
            line += f"data.val_sample={fitting * data.val_window} makes that about "
            line += f"{duration(times * fitting * each)}, with val_bpb over fewer bytes"
        else:
            line += f"data.val_sample={data.val_window}, one window, makes that about "
            line += duration(times * each)
        if times > 1:
            line += "; train.val_every=null validates once, at the end"
        self._display.say(line)

    def _tried(self, model: LanguageModel) -> float:
        """Return the time of a validation, from the first bytes of the rows of its first batch."""
        train = self._config.train
        self._display.activity("timing a piece of a validation")
        rows = next(validation_batches(self._data, *self._windows(None), train.batch_size))
        piece = rows[:, : _TRIED_BYTES + 1]
        fastest = math.inf
        for _ in range(2):  # the first may compile
            began = time.perf_counter()
            _, predicted = score(model, [piece], self._device, train.precision)
            fastest = min(fastest, time.perf_counter() - began)
            if fastest >= _WORTH_SAYING_SECONDS:
                break
        self._display.activity("")
        return fastest * self._bytes(None) / predicted

    def _training_seconds(self, step_seconds: float, steps_done: int) -> float:
        train = self._config.train
        seconds = [math.inf if train.steps is None else (train.steps - steps_done) * step_seconds]
        if train.budget_minutes is not None:
            seconds.append(60 * train.budget_minutes)
        return max(0.0, min(seconds))

    def _windows(self, sample: int | None) -> tuple[int, int]:
        data = self._config.data
        return data.val_window, data.val_sample if sample is None else sample

    def _bytes(self, sample: int | None) -> int:
        window, wanted = self._windows(sample)
        return len(validation_windows(self._data, window, wanted)) * window
