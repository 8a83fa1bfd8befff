"""Runs the training loop and decides when to step, validate, save and stop."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import torch

from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.base.signals import Interruption, Stopped
from elman.base.units import duration
from elman.config.run_config import RunConfig
from elman.data.batches import AnyRunData
from elman.data.tasks.batches import TaskData
from elman.devices.environment import peak_memory
from elman.distributed.team import ALONE, Team, leader_alone
from elman.distributed.watch import TeamError
from elman.kernels import stalls
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.training.checkpoints.loading import saved_config
from elman.training.checkpoints.retention import SaveReason, reason_of
from elman.training.checkpoints.store import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    DamagedError,
    find_checkpoint,
)
from elman.training.display import Display
from elman.training.first_pass import LayerProgress, refuse_hopeless, refuse_too_long
from elman.training.held_out import HeldOut
from elman.training.held_out_answers import HeldOutAnswers
from elman.training.ledger import Ledger
from elman.training.new_schedule import adopt_schedule
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.profiling import profiling
from elman.training.recorder import Recorder
from elman.training.room import NoRoomError, Result, Room
from elman.training.saving import Saver
from elman.training.stepper import Stepper
from elman.training.suspension import Suspension

SHOWN_SECONDS = 10.0
"""A line is shown at least this often, however rarely ``log.every`` asks for one."""


class _Moment(NamedTuple):
    """What all ranks agree on between two steps: the used share of the budget, and what is due."""

    share: float
    stopped: bool
    save: SaveReason | None


class Trainer:
    """Trains one model in one run folder.

    Args:
        config: The run's configuration.
        folder: The run folder.
        data: The open data.
        device: Where the model lives.
        store: The run's checkpoints.
        display: Shows progress to people.
        team: The ranks that train the model; rank 0 writes.
        shard: Cuts a whole model into parts, if ``parallel.shard`` says so.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        data: AnyRunData,
        device: torch.device,
        store: CheckpointStore,
        display: Display,
        team: Team = ALONE,
        shard: Callable[[LanguageModel], None] = lambda model: None,
    ) -> None:
        self.config, self._folder, self._device = config, folder, device
        self._store, self._display, self._team = store, display, team
        torch.manual_seed(config.train.seed)
        self.model = self._build()
        self.model.activation_checkpointing = config.train.activation_checkpointing
        shard(self.model)
        optimizer = TrainingOptimizer(config.optim, self.model, config.kernels.backend)
        self.stepper = Stepper(config, data, self.model, optimizer, device, team)
        self.ledger = Ledger(config, display, device, self.stepper.budget, team)
        self._pass_seconds = 0.0
        self._held_out = _held_out(config, data, device, display, team)
        self.reload_difference: float | None = None
        self.saver = Saver(config, data, store, self.stepper, self.ledger, display)
        self._room = Room(config, self.stepper, display)
        self._flushed_at = time.monotonic()
        self._interruption = Interruption()
        self._moment = _Moment(0.0, False, None)
        self._suspension = Suspension(self.ledger.clock, 0.0)

    def start_from(self, place: str) -> None:
        """Load only the weights of another run's checkpoint.

        Raises:
            UserError: there is none, it is damaged, or its weights do not fit this model.
        """
        checkpoint, model = find_checkpoint(place), self.config.model
        try:
            difference = saved_config(checkpoint).model.difference(model)
        except UserError:  # its configuration is damaged, and only its weights are needed
            difference = ""
        try:
            checkpoint.load_weights(self.model)
        except DamagedError:
            raise
        except UserError as error:
            if not difference:
                raise
            raise UserError(
                f"train.init_from={place}: its weights do not fit model={model.name}, which "
                f"differs from the checkpoint's model ({difference}); drop model= and its "
                "settings to take that model"
            ) from error
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
        self.saver.restore(checkpoint, self._folder)
        if isinstance(self._held_out, HeldOutAnswers):
            self.ledger.recall_answers(self.stepper.step, checkpoint.meta.get("answers"))
        elif checkpoint.val_bpb is not None:
            self.ledger.recall(self.stepper.step, checkpoint.val_bpb, self._held_out.predicted)
        step, budget = self.stepper.step, self.stepper.budget
        # A budget of fewer steps than were taken is another one than this run was stopped under.
        fewer = step > 0 and budget.share(step - 1, 0.0) >= 1.0
        if self.ledger.share(step) >= 1.0 and (fewer or (ended and self._all_measured)):
            used = f"{self.stepper.step} steps, {self.ledger.clock.seconds() / 60:.2f} minutes"
            larger = " or ".join(budget.keys())
            if self.ledger.accurate:
                used, larger = f"{used}; it reached train.until_accuracy", "train.until_accuracy"
            raise UserError(
                f"{self._folder}: its budget is used up ({used}); set a larger {larger}"
            )
        line = adopt_schedule(before or self.config, self.config, self.stepper, self.ledger)
        self._display.say(f"resuming after step {step}")
        if line is not None:
            self._display.say(line)

    def first_pass(self) -> None:
        """Build missing kernels and check that a step fits into memory; call before :meth:`run`.

        Raises:
            UserError: the pass cannot be replayed as a graph, or a step would take longer than
                ``train.max_step_hours``.
        """
        ranks, each = self._team.place.size, self.stepper.budget.flops_per_byte
        refuse_hopeless(self.config, each, self._device, ranks)
        train = self.config.train
        progress: Callable[[], str] = str
        watching: AbstractContextManager[None] = nullcontext()
        what = "compiling the pass" if train.compile else "first pass"
        if self._device.type == "cpu" and not train.compile:
            layers = LayerProgress(self.model.layers, self.config)
            progress, watching = layers.told, layers.watched()
        with watching, self._display.long_step(f"{what} (not counted)", progress):
            if self.config.parallel.shard == "none":
                with self._team.host_first("building kernels"):
                    seconds = self.stepper.discarded()
            else:  # a pass needs every rank
                seconds = self.stepper.discarded()
        self._pass_seconds = seconds * self.config.train.grad_accum
        told = self._team.gather(self._pass_seconds)
        refuse_too_long(self.config, max(row[0] for row in told))

    def run(self, recorder: Recorder, interruption: Interruption) -> RunStatus:
        """Train until the budget is used up, a number is not finite, or a signal comes.

        Raises:
            UserError: the data can no longer be read; what was trained until then is saved.
            NoRoomError: work between two steps does not fit into memory; what was trained is
                saved, if there is room for that.
            TeamError: another rank failed; rank 0 saves what was trained until then.
        """
        if self._team.place.alone:  # ranks would have to agree on what is worth saying
            left = self.stepper.budget.steps_left(self.stepper.step)
            self._foretell(left)
            with suppress(torch.OutOfMemoryError):  # a forecast; validating makes itself room
                self._held_out.foretell(self.model, self._pass_seconds, left)
        self._interruption = interruption
        self.ledger.begin(recorder, self.stepper.step, self.stepper.tokens)
        self._suspension = Suspension(self.ledger.clock, self._pass_seconds)
        interruption.begin()
        self.saver.begin()
        try:
            status = self._trained()
        except (UserError, OSError, NoRoomError):
            (self._rescue if self._team.place.alone else self._rescue_alone)()
            raise
        except TeamError:
            self._rescue_alone()
            raise
        try:
            self.saver.save(SaveReason.END)
            self._collect()
        except TeamError:
            self._rescue_alone()
            raise
        if status is RunStatus.INTERRUPTED:
            self._display.say(f"{interruption.name}: saved after step {self.stepper.step}")
        if status is RunStatus.OK and self._team.place.leads:
            self._check_saved_weights()
        return status

    def _foretell(self, left: float) -> None:
        """Say before the first step how long a step may take, if that is long."""
        each = self._pass_seconds
        if each < SHOWN_SECONDS:
            return
        line = f"a step may take {duration(each)}, as the first pass did"
        if self.config.train.compile:
            line = f"a step may take {duration(each)}, as a compiled pass did"
        if math.isfinite(left):
            line += f", and the {left:,.0f} to do {duration(left * each)}"
        line += "; a smaller train.batch_size or train.chunk_size makes it shorter"
        self._display.say(line)

    def _collect(self) -> None:
        """Let the result say what all ranks used, not rank 0 alone."""
        contended = self.ledger.contention.contended
        told = self._team.gather(
            peak_memory(self._device), contended is not None, contended is True
        )
        if not self._team.place.alone:
            self.ledger.peak_of_ranks = int(max(row[0] for row in told))
            watched = any(row[1] for row in told)
            self.ledger.contention.contended = any(row[2] for row in told) if watched else None

    def _trained(self) -> RunStatus:
        """Train and validate; return how it ended."""
        self._look()
        self._make_up_validation()
        status = self._loop()
        # Printing may block on a terminal that is paused, so the weights are saved first.
        self._flush(show=not self._moment.stopped)
        self.stepper.make_room()  # no step follows
        if status is RunStatus.OK and not self._all_measured:
            self._validate_and_test()
            if not self._all_measured:
                status = RunStatus.INTERRUPTED
        return status

    @property
    def _all_measured(self) -> bool:
        """Whether the newest weights were validated, and those of a task tested."""
        step, ledger = self.stepper.step, self.ledger
        tested = isinstance(self._held_out, HeldOut) or ledger.tested_step == step
        return ledger.validated_step == step and tested

    def _validate_and_test(self) -> None:
        """Measure what the end of a run still lacks, unless a signal comes."""
        step = self.stepper.step
        if self.ledger.validated_step != step:
            self._validate()
        answers = self._held_out
        if self.ledger.validated_step != step or isinstance(answers, HeldOut):
            return
        try:
            found = self._measured(
                lambda: answers.by_length(self.model, self._interruption), "testing"
            )
        except Stopped:
            return
        self.ledger.tested(step, found)

    def _rescue(self) -> None:
        """Save the training done before the data, the disk or the memory failed."""
        self.stepper.blocked(drain=True)  # do not count a step that was not finite
        with suppress(OSError):
            self._flush()
        with suppress(torch.OutOfMemoryError):  # the first error says what did not fit
            self.saver.save(SaveReason.FAILURE)
        if self.saver.up_to_date:
            self._display.say(f"saved after step {self.stepper.step}")

    def _rescue_alone(self) -> None:
        """Save on rank 0 the training done before another rank was lost.

        Where rank 0 does not have everything, the newest checkpoint stays what it was.
        """
        self._team.abandon()
        with suppress(OSError, RuntimeError):
            self.stepper.blocked(drain=True)
            train, parallel = self.config.train, self.config.parallel
            scattered = train.tbptt or parallel.average_every or parallel.shard != "none"
            if not self._team.writes or scattered:
                return
            self.stepper.rewind()
            with self._team.busy("saving"):
                self._team = self.stepper.team = ALONE
                self._flush()
                self.saver.save(SaveReason.FAILURE)
            if self.saver.up_to_date:
                self._display.say(f"saved after step {self.stepper.step}")

    def _look(self) -> None:
        """Let all ranks see the same moment: rank 0's clock, and a signal to any of them."""
        self._forget_stop()
        share = self.ledger.share(self.stepper.step)
        self.stepper.budget.pass_warmup(self.stepper.step, self.ledger.clock.seconds())
        asked = signal.Signals[self._interruption.name] if self._interruption.name else 0
        due = self.saver.due()
        told = self._team.gather(share, asked, due.number if due else 0)
        asked = int(max(row[1] for row in told))
        if asked:
            self._interruption.take_over(asked)
        self._moment = _Moment(told[0][0], asked > 0, reason_of(told[0][2]))

    def _forget_stop(self) -> None:
        """Do not count the time in which this process was stopped, and say so."""
        if seconds := self._suspension.forgiven(self._interruption):
            self._display.say(f"stopped for {duration(seconds)}, which does not count as training")

    def _loop(self) -> RunStatus:
        config, stepper, ledger = self.config, self.stepper, self.ledger
        profile = config.train.profile and self._team.place.leads
        with profiling(profile, self._folder, self._device) as profiler_step:
            self._look()
            while self._moment.share < 1.0 and not self._moment.stopped:
                self._record_again()
                self._forget_stop()
                self._suspension.begins()
                self._team.does(f"computing step {stepper.step + 1}")
                taken = stepper.take(self._moment.share)
                if ledger.throughput.marks_next():
                    stepper.synchronize()
                self._forget_stop()
                ledger.book(taken, stepper.tokens)
                profiler_step()
                if stepper.blocked():
                    return self._not_finite()
                self._look()
                if not self._moment.stopped:
                    self._after_step()
        # The last step's flag may not have arrived from the device yet.
        if stepper.blocked(drain=True):
            return self._not_finite()
        ledger.settle()
        return RunStatus.INTERRUPTED if self._moment.stopped else RunStatus.OK

    def _record_again(self) -> None:
        """Record the step anew, if its memory was needed since the last one."""
        if self.stepper.released:
            recording = self._display.long_step("recording the step again (not counted)")
            with recording, self.ledger.clock.pause("validation"):
                self._room.give("recording the step again", self.stepper.discarded)

    def _not_finite(self) -> RunStatus:
        """Return how a run ends whose numbers are not finite, if no kernel is to blame.

        Raises:
            UserError: a kernel gave up, which leaves NaN.
        """
        stalls.check()
        return RunStatus.NAN

    def _make_up_validation(self) -> None:
        """Do the validation that a signal stopped, as if the signal had not come."""
        every, step = self.config.train.val_every, self.stepper.step
        due = every and step and step % every == 0 and self._moment.share < 1.0
        if due and self.ledger.validated_step != step and self._validate():
            self._save(SaveReason.MADE_UP)  # the saved checkpoint does not have its val_bpb yet

    def _after_step(self) -> None:
        """Record, validate and save when each is due, but not after the last step."""
        train, step = self.config.train, self.stepper.step
        # Slow steps are shown one by one, so that nobody waits long without an update.
        slow = time.monotonic() - self._flushed_at > SHOWN_SECONDS
        if step % self.config.log.every == 0 or slow:
            self._flush()
        if self._moment.share >= 1.0:
            return
        validates = train.val_every and step % train.val_every == 0
        if validates:
            self._flush()
            if self._validate():
                self._save(SaveReason.BEST)
        if self._moment.save:
            self._save(self._moment.save)
        if validates or self._moment.save:  # that took a while
            self._look()

    def _flush(self, *, show: bool = True) -> None:
        if not self._team.place.alone:
            self.stepper.synchronize()
        with leader_alone(self._team, "showing"):  # a terminal may be paused
            self.ledger.flush(self.stepper.step, self.stepper.data_wait, show=show)
        self._flushed_at = time.monotonic()

    def _validate(self) -> bool:
        """Measure ``val_bpb`` with the weights to save; return whether it is the best so far.

        A validation that a signal stops does not count: nothing is recorded, and it does not
        choose the best checkpoint.
        """
        self.stepper.agree(moments=False)
        self.stepper.synchronize()
        try:
            found = self._measured(
                lambda: self._held_out.score(self.model, self._interruption), "validating"
            )
        except Stopped:
            return False
        return self.ledger.validated(self.stepper.step, *found)

    def _measured(self, measure: Callable[[], Result], what: str) -> Result:
        """Measure the model with the weights to save, while the clock of training stands still."""

        def measured() -> Result:
            with self.ledger.clock.pause("validation"), self.stepper.optimizer.kept_weights():
                return measure()

        return self._room.give(what, measured)

    def _save(self, reason: SaveReason) -> None:
        self._room.give("saving", lambda: self.saver.save(reason), exchanges=True)

    def _check_saved_weights(self) -> None:
        """Load the saved weights into a new model and score one batch with both models.

        A signal skips the check, because everything of the run is already on the disk.

        Raises:
            CheckpointError: the two models predict differently.
        """
        if self.config.parallel.shard != "none":
            return  # nobody holds the whole model
        sample = self._held_out.one_batch
        newest = self._store.newest()
        assert newest is not None, "the final save was just written"

        def score(model: LanguageModel) -> float:
            what, signals = "checking the saved weights", self._interruption
            given = (model, signals)
            return self._held_out.score(*given, what=what, sample=sample, team=ALONE).bpb

        try:
            with self.ledger.clock.pause("checkpoint"):
                reloaded = self._build()
                newest.load_weights(reloaded)
                saved = score(reloaded)
                with self.stepper.optimizer.kept_weights():
                    in_memory = score(self.model)
        except Stopped:
            return
        except torch.OutOfMemoryError:  # everything of the run is on the disk
            self._display.say("the saved weights were not checked: two models do not fit in memory")
            return
        self.reload_difference = abs(saved - in_memory)
        if not self.reload_difference <= 1e-3 * in_memory:
            raise CheckpointError(
                f"{newest.path}: the saved weights score {saved:.4f} bits per prediction and those "
                f"in memory {in_memory:.4f} on the same data"
            )

    def _build(self) -> LanguageModel:
        return build_model(
            self.config.model,
            backend=self.config.kernels.backend,
            device=self._device,
            allow_slow=self.config.baseline.allow_slow,
            reset_after=self.config.data.reset_after,
        )


def _held_out(
    config: RunConfig, data: AnyRunData, device: torch.device, display: Display, team: Team
) -> HeldOut | HeldOutAnswers:
    if isinstance(data, TaskData):
        return HeldOutAnswers(config, data, device, display)
    return HeldOut(config, data, device, display, team)
