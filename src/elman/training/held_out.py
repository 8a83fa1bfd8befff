"""Scores the held-out windows of a run, shows the progress, and warns if it will take long."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import torch

from elman.base.signals import Interruption, Stopped
from elman.base.units import duration
from elman.data.files import Bytes
from elman.data.text import Data
from elman.data.windows import TokenRows, as_tokens, validation_batches, validation_windows
from elman.distributed.team import ALONE, Team, ordered
from elman.evaluation.metrics import bits_per_byte
from elman.evaluation.validation import nats_of_batches, score
from elman.models.language_model import LanguageModel
from elman.sections.training import DataConfig, TrainConfig
from elman.training.display import WAIT_SECONDS, Display

_WORTH_SAYING_SECONDS = 10.0
# Bytes of each row of one batch that are run to learn the speed of a forward pass.
_TRIED_BYTES = 32


class Scored(NamedTuple):
    """What a validation found.

    Attributes:
        bpb: Bits per predicted byte, or per answer of a task.
        predicted: Bytes predicted, or answers.
        accuracy: Of a task: the share of right answers; None for text.
    """

    bpb: float
    predicted: int
    accuracy: float | None = None


class HeldOut:
    """Scores the windows of ``val_bpb``.

    Args:
        text: Group ``data``.
        train: Group ``train``.
        data: The open data.
        device: Where the model lives.
        display: Shows progress to people.
        team: The ranks; each scores its own batches, and the sum is that of one rank.
        sharded: Whether each rank holds only a part of the model.
    """

    def __init__(
        self,
        text: DataConfig,
        train: TrainConfig,
        data: Data,
        device: torch.device,
        display: Display,
        team: Team = ALONE,
        sharded: bool = False,
    ) -> None:
        self._text, self._train, self._data, self._device = text, train, data, device
        self._display, self._team, self._sharded = display, team, sharded
        self._seconds: float | None = None

    @property
    def predicted(self) -> int:
        """Bytes that a validation predicts; fewer than requested if the held-out tail is short."""
        return self._bytes(None)

    @property
    def one_batch(self) -> int:
        """Bytes of one batch of windows."""
        rows = self._train.batch_size
        return min(self._text.val_sample, rows * self._text.val_window)

    def score(
        self,
        model: LanguageModel,
        interruption: Interruption,
        *,
        what: str = "validating",
        sample: int | None = None,
        team: Team | None = None,
    ) -> Scored:
        """Return the bits per byte of the windows.

        Args:
            model: With the weights to score.
            interruption: A signal that it notes ends the scoring at once.
            what: The activity to show, for people.
            sample: Bytes to predict; None means ``data.val_sample``, as ``val_bpb`` is defined.
            team: The ranks that share the batches, if other than those of the run.

        Raises:
            Stopped: a signal came to a rank, so there is no number.
        """
        team = team or self._team
        total, began = self._bytes(sample), time.perf_counter()
        if sample is None and self._seconds is not None and self._seconds >= WAIT_SECONDS:
            self._display.waiting(f"{what}, about {duration(self._seconds)}", every=0)
        else:
            self._display.activity(f"{what} 0%")

        def show(predicted: int) -> None:
            predicted = min(total, predicted * team.place.size)
            left = (time.perf_counter() - began) * (total - predicted) / predicted
            if predicted < total:
                self._display.waiting(f"{what} {predicted / total:.0%}, {duration(left)} left")

        try:
            held_out = self._scored(model, sample, team, show, interruption)
        finally:
            self._display.activity("")
        if sample is None:
            self._seconds = time.perf_counter() - began
        return Scored(*held_out)

    def _scored(
        self,
        model: LanguageModel,
        sample: int | None,
        team: Team,
        show: Callable[[int], None],
        interruption: Interruption,
    ) -> tuple[float, int]:
        """Score this rank's batches, exchange the sums and add them in the order of the batches."""
        rank, size = team.place.rank, team.place.size
        train = self._train
        predicted = self._bytes(sample)
        windows = predicted // self._text.val_window
        count = -(-windows // train.batch_size)
        most = -(-count // size)
        sharded = self._sharded
        tried = self._batches(sample, rank, size)
        if sharded and rank + (most - 1) * size >= count:
            # A pass of a sharded model needs every rank: this one has no batch left for the last.
            tried = chain(tried, islice(self._batches(sample), 1))
        # Nor may one of its ranks stop in a pass.
        stoppable = contextlib.nullcontext if sharded else interruption.stoppable
        stopped, found = 0.0, list[tuple[float, int]]()
        try:
            found = nats_of_batches(model, tried, self._device, train.precision, show, stoppable)
        except Stopped:
            stopped = 1.0
        nats = [one for one, _ in found]
        gathered = team.gather(stopped, *nats, *[0.0] * (most - len(nats)))
        if any(row[0] for row in gathered):
            raise Stopped
        total = 0.0
        for one in ordered([row[1:] for row in gathered], count):
            total += one
        return bits_per_byte(total / predicted), predicted

    def _batches(
        self, sample: int | None, rank: int = 0, size: int = 1
    ) -> Iterator[Bytes | TokenRows]:
        rows = validation_batches(self._data, *self._windows(sample), self._train.batch_size)
        return as_tokens(islice(rows, rank, None, size), self._data.tokenizer)

    def forecast(self, model: LanguageModel, step_seconds: float, steps_left: float) -> None:
        """Say before the first step if validating will take longer than training.

        The discarded first step gives an upper bound: it also ran the backward pass, and may have
        compiled kernels. Only if that bound is too long, a part of a validation is timed.

        Args:
            model: The model.
            step_seconds: Upper bound of the time of one optimizer step.
            steps_left: Steps that the budgets leave, other than that of minutes.
        """
        train, data = self._train, self._text
        training = self._training_seconds(step_seconds, steps_left)
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
        """Return the time of a validation, estimated from the start of its first batch's rows."""
        train = self._train
        rows = next(validation_batches(self._data, *self._windows(None), train.batch_size))
        (piece,) = as_tokens([rows[:, : _TRIED_BYTES + 1]], self._data.tokenizer)
        fastest = math.inf
        self._display.activity("timing a part of a validation")
        try:
            for _ in range(2):  # the first may compile
                began = time.perf_counter()
                _, predicted = score(model, [piece], self._device, train.precision)
                fastest = min(fastest, time.perf_counter() - began)
                if fastest >= _WORTH_SAYING_SECONDS:
                    break
        finally:
            self._display.activity("")
        return fastest * self._bytes(None) / predicted

    def _training_seconds(self, step_seconds: float, steps_left: float) -> float:
        minutes = self._train.budget_minutes
        seconds = math.inf if minutes is None else 60 * minutes
        return min(seconds, steps_left * step_seconds)

    def _windows(self, sample: int | None) -> tuple[int, int]:
        data = self._text
        return data.val_window, data.val_sample if sample is None else sample

    def _bytes(self, sample: int | None) -> int:
        window, window_count = self._windows(sample)
        return len(validation_windows(self._data, window, window_count)) * window
