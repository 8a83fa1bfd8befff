"""Trains one model in one run folder: from a new or a saved state to its last checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import torch

from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.base.signals import Interruption
from elman.base.units import duration
from elman.config.run_config import RunConfig
from elman.data.tasks.batches import TaskData
from elman.data.text import AnyRunData
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.distributed.watch import TeamError
from elman.models.language_model import LanguageModel
from elman.sections.training import DataConfig
from elman.training.agreement import Agreement
from elman.training.checkpoint_on_failure import checkpoint_on_failure
from elman.training.checkpoints.loading import check_tokens, saved_config
from elman.training.checkpoints.retention import SaveReason
from elman.training.checkpoints.store import (
    Checkpoint,
    CheckpointStore,
    DamagedError,
    find_checkpoint,
)
from elman.training.display import Display
from elman.training.first_pass import first_pass
from elman.training.held_out import HeldOut
from elman.training.held_out_answers import HeldOutAnswers
from elman.training.listeners.memory_guard import MemoryGuard, TooLittleMemoryError
from elman.training.listeners.profiling import Profile
from elman.training.listeners.records import SHOWN_SECONDS, Records
from elman.training.listeners.saving import Saver
from elman.training.listeners.totals import Totals
from elman.training.listeners.validation import Validation
from elman.training.loop import train
from elman.training.moments import Listeners
from elman.training.new_schedule import change_schedule
from elman.training.recorder import Recorder
from elman.training.reload_check import reload_difference
from elman.training.training_state import TrainingState


class Trainer:
    """Trains one model in one run folder.

    Args:
        config: The run's configuration.
        folder: The run folder.
        state: The model, its optimizer, the place in the data, and the ranks; rank 0 writes.
        data: The open data.
        new_model: Returns a model of the same form, for a check of what is saved.
        store: The run's checkpoints.
        display: Shows progress to people.
        interruption: Notes the signals that stop the run.

    Attributes:
        state: As given.
        totals: The numbers of the run.
        reload_difference: How far the saved weights predict something else than those in memory,
            in bits; None if they were not compared.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        state: TrainingState,
        data: AnyRunData,
        new_model: Callable[[], LanguageModel],
        store: CheckpointStore,
        display: Display,
        interruption: Interruption,
    ) -> None:
        self.config, self._folder, self.state = config, folder, state
        self._new_model, self._store, self._display = new_model, store, display
        self._interruption = interruption
        settings = config.train
        self.totals = Totals(state, settings.until_accuracy, interruption, display)
        self._records = Records(state, self.totals, config.log.every, display)
        guard = MemoryGuard(state, self.totals.clock, display)
        self._saver = Saver(settings, data, store, state, self.totals, guard, display)
        self._validation = Validation(
            state,
            settings.val_every,
            _held_out(config, data, state, display),
            self.totals,
            self._records,
            self._saver,
            guard,
            interruption,
            display,
        )
        self._profile = Profile(folder, state.device, settings.profile and state.team.place.leads)
        self._listeners = Listeners(
            # In this order at every moment: the clock stops before what it measures is written, and
            # what is validated is recorded before, and saved after it.
            [
                self._profile,
                self.totals,
                self._records,
                guard,
                self._validation,
                self._saver,
            ]
        )
        self.reload_difference: float | None = None

    @property
    def begun(self) -> bool:
        """Whether the clock runs: nothing can refuse the run any more."""
        return self._records.begun

    def start_from(self, place: str, tokenizer: Tokenizer | None = None) -> None:
        """Load only the weights of another run's checkpoint.

        Args:
            place: The run folder or the checkpoint.
            tokenizer: Makes the tokens of this run; None if they are no subwords.

        Raises:
            UserError: there is none, it is damaged, its weights do not fit this model, or they
                read other tokens.
        """
        checkpoint, model = find_checkpoint(place), self.config.model
        if isinstance(self.config.data, DataConfig):
            check_tokens(checkpoint, tokenizer, f"train.init_from={place}")
        try:
            difference = saved_config(checkpoint).model.difference(model)
        except UserError:  # its configuration is damaged, and only its weights are needed
            difference = ""
        try:
            checkpoint.load_weights(self.state.model)
        except DamagedError:
            raise
        except UserError as error:
            if not difference:
                raise
            raise UserError(
                f"train.init_from={place}: its weights do not fit model={model.name}: the "
                f"checkpoint's model differs from it ({difference}); drop model= and its settings "
                "to take the checkpoint's"
            ) from error
        self._display.say(f"weights: those of {checkpoint.path}")
        if difference:
            self._display.say(
                f"train.init_from: the weights fit, but the checkpoint's model differs from "
                f"model={model.name} ({difference})"
            )

    def resume(
        self, checkpoint: Checkpoint, *, ended: bool = True, before: RunConfig | None = None
    ) -> None:
        """Continue the run that saved ``checkpoint``: weights, optimizer, data, clock, numbers.

        Args:
            checkpoint: The newest one of the run.
            ended: Whether the run left all that a run leaves after this step.
            before: The configuration under which it was saved; None is today's.

        Raises:
            DamagedError: the checkpoint is damaged.
            UserError: the data changed, or the budget is used up and nothing is left to do. (A run
                that was stopped in its last validation still has that validation to do, and one
                that was killed after it still has its result to write.)
        """
        self._saver.restore(checkpoint, self._folder)
        self._validation.recall(checkpoint)
        self._refuse_used_up(ended)
        line = change_schedule(before or self.config, self.config, self.state, self.totals)
        self._display.say(f"resuming after step {self.state.step}")
        if line is not None:
            self._display.say(line)

    def _refuse_used_up(self, ended: bool) -> None:
        """Raise UserError if the budget is used up and nothing is left to do."""
        step, budget = self.state.step, self.state.budget
        # A budget of fewer steps than were taken is another one than this run was stopped under.
        fewer = step > 0 and budget.share(step - 1, 0.0) >= 1.0
        if self.totals.share() < 1.0 or not (fewer or (ended and self._validation.complete)):
            return
        used = f"{step} steps, {self.totals.clock.seconds() / 60:.2f} minutes"
        larger = " or ".join(budget.keys())
        if self.totals.accurate:
            used, larger = f"{used}; it reached train.until_accuracy", "train.until_accuracy"
        raise UserError(f"{self._folder}: its budget is used up ({used}); set a larger {larger}")

    def first_pass(self) -> None:
        """Build missing kernels and check that a step fits into memory; call before :meth:`run`.

        Raises:
            UserError: the pass cannot be replayed as a graph, or a step would take longer than
                ``train.max_step_hours``.
        """
        self.totals.pass_seconds = first_pass(self.state, self._display)

    def run(self, recorder: Recorder) -> RunStatus:
        """Train until the budget is used up, a number is not finite, or a signal comes.

        Raises:
            UserError: the data can no longer be read; what was trained until then is saved.
            TooLittleMemoryError: work between two steps does not fit into memory; what was trained
                is saved, if there is room for that.
            TeamError: another rank failed; rank 0 saves what was trained until then.
        """
        if self.state.team.place.alone:  # ranks would have to agree on what is worth saying
            self._forecast()
        self._records.open(recorder, self.config.train)
        self._listeners.session_begins()
        self._interruption.begin()
        look = Agreement(self.state, self.totals, self._saver, self._interruption).look
        try:
            with closing(self._profile):
                status = train(self.state, self._listeners, look)
        except (UserError, OSError, TooLittleMemoryError, TeamError):
            checkpoint_on_failure(self.state, self._records, self._saver, self._display)
            raise
        if status is RunStatus.OK and not self._validation.complete:
            status = RunStatus.INTERRUPTED
        self._end(status)
        return status

    def _end(self, status: RunStatus) -> None:
        """Save the newest weights, and check what is saved, if the run saves any.

        Raises:
            OSError: they could not be saved, or they predict something else than those in memory.
            TeamError: another rank failed.
        """
        try:
            self._saver.save(SaveReason.END)
            self.totals.collect()
        except TeamError:
            checkpoint_on_failure(self.state, self._records, self._saver, self._display)
            raise
        step, leads = self.state.step, self.state.team.place.leads
        saves = self.config.train.checkpoints
        if status is RunStatus.INTERRUPTED:
            saved = "saved" if saves else "stopped, and nothing saved (train.checkpoints=false),"
            self._display.say(f"{self._interruption.name}: {saved} after step {step}")
        if status is RunStatus.OK and leads and saves:
            newest = self._store.newest()
            assert newest is not None, "the final save was just written"
            self.reload_difference = reload_difference(
                self.state,
                newest,
                self._new_model,
                self._validation.held_out,
                self.totals.clock,
                self._interruption,
                self._display,
            )

    def _forecast(self) -> None:
        """Say before the first step how long a step and a validation may take, if that is long."""
        each, seconds = self.totals.pass_seconds, self.totals.clock.seconds()
        left = self.state.budget.steps_left(self.state.step, seconds, each)
        if each >= SHOWN_SECONDS:
            self._display.say(_long_step(each, left, compiled=self.config.train.compile))
        with suppress(torch.OutOfMemoryError):  # a forecast; validating makes itself room
            self._validation.held_out.forecast(self.state.model, each, left)


def _long_step(each: float, left: float, *, compiled: bool) -> str:
    """Return what is said of steps that take long.

    Args:
        each: Seconds of a step.
        left: Steps to do; infinity if nobody knows.
        compiled: Whether torch compiled the pass.
    """
    line = f"a step may take {duration(each)}, as {'a compiled' if compiled else 'the first'} pass"
    line += " did"
    if math.isfinite(left):
        line += f", and the {left:,.0f} to do {duration(left * each)}"
    return f"{line}; a smaller train.batch_size or train.chunk_size makes it shorter"


def _held_out(
    config: RunConfig, data: AnyRunData, state: TrainingState, display: Display
) -> HeldOut | HeldOutAnswers:
    """Return what scores the held-out part of the data."""
    if isinstance(data, TaskData):
        return HeldOutAnswers(config.train, data, state.device, display)
    assert isinstance(config.data, DataConfig)
    ranks = (state.team, state.reduction.sharded)
    return HeldOut(config.data, config.train, data, state.device, display, *ranks)
