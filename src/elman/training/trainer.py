"""Runs the training loop and decides when to step, validate, save and stop."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

import torch

from elman.base.errors import RunStatus, UserError, first_line
from elman.base.signals import Interruption, Stopped
from elman.config.run_config import RunConfig
from elman.data.batches import AnyRunData
from elman.data.files import same_bytes
from elman.data.tasks.batches import TaskData
from elman.kernels import stalls
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.training.checkpoints.integrity import BadFileError
from elman.training.checkpoints.store import (
    STATE,
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    DamagedError,
    find_checkpoint,
)
from elman.training.display import Display
from elman.training.held_out import HeldOut
from elman.training.held_out_answers import HeldOutAnswers
from elman.training.ledger import Ledger
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.profiling import profiling
from elman.training.recorder import Recorder
from elman.training.stepper import Stepper

SHOWN_SECONDS = 10.0
RETRY_MINUTES = 1.0
"""Seconds between two attempts to save when the disk is full."""

_log = logging.getLogger("elman.train")


class Trainer:
    """Trains one model in one run folder.

    Args:
        config: The run's configuration.
        folder: The run folder.
        data: The open data.
        device: Where the model lives.
        store: The run's checkpoints.
        display: Shows progress to people.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        data: AnyRunData,
        device: torch.device,
        store: CheckpointStore,
        display: Display,
    ) -> None:
        self.config, self._folder, self._data, self._device = config, folder, data, device
        self._store, self._display = store, display
        torch.manual_seed(config.train.seed)
        self.model = self._build()
        self.model.activation_checkpointing = config.train.activation_checkpointing
        optimizer = TrainingOptimizer(config.optim, self.model)
        self.stepper = Stepper(config, data, self.model, optimizer, device)
        self.ledger = Ledger(config, display, device)
        self._pass_seconds = 0.0
        self._held_out = _held_out(config, data, device, display)
        self.reload_difference: float | None = None
        self._saved_at = self._flushed_at = time.monotonic()
        self._saved_step: int | None = None
        self._failed_step: int | None = None
        self._interruption = Interruption()

    def start_from(self, place: str) -> None:
        """Load only the weights of another run's checkpoint."""
        find_checkpoint(place).load_weights(self.model)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue the run that saved ``checkpoint``: weights, optimizer, data, clock, numbers.

        Raises:
            DamagedError: the checkpoint is damaged.
            UserError: the data changed, or the budget is used up and nothing is left to do. (A run
                that was stopped in its last validation still has that validation to do.)
        """
        state = checkpoint.load_state()
        if not {"data", "stepper", "ledger"} <= state.keys():
            what = "damaged (it does not hold the state of a run)"
            raise DamagedError(BadFileError(checkpoint.path / STATE, what))
        if not same_bytes(state["data"], self._data_identity()):
            raise UserError(
                f"{_different(self._data)}; restore that data, or start a new run with "
                f"train.init_from={self._folder}"
            )
        checkpoint.load_weights(self.model)
        self.stepper.load_state_dict(state["stepper"])
        self.ledger.load_state_dict(state["ledger"])
        self._saved_step = self.stepper.step
        if isinstance(self._held_out, HeldOutAnswers):
            self.ledger.recall_answers(self.stepper.step, checkpoint.meta.get("answers"))
        elif checkpoint.val_bpb is not None:
            self.ledger.recall(self.stepper.step, checkpoint.val_bpb, self._held_out.predicted)
        if self.ledger.share(self.stepper.step) >= 1.0 and self._all_measured:
            used = f"{self.stepper.step} steps, {self.ledger.clock.seconds() / 60:.2f} minutes"
            larger = "train.steps or train.minutes"
            if self.ledger.accurate:
                used, larger = f"{used}; it reached train.until_accuracy", "train.until_accuracy"
            raise UserError(
                f"{self._folder}: its budget is used up ({used}); set a larger {larger}"
            )

    def first_pass(self) -> None:
        """Build missing kernels and check that a step fits into memory; call before :meth:`run`.

        Raises:
            UserError: the pass cannot be replayed as a graph.
        """
        self._display.activity("first pass (not counted)")
        began = time.perf_counter()
        self.stepper.discarded()
        seconds = (time.perf_counter() - began) * self.config.train.grad_accum
        self._display.activity("")
        self._pass_seconds = seconds

    def run(self, recorder: Recorder, interruption: Interruption) -> RunStatus:
        """Train until the budget is used up, a number is not finite, or a signal comes.

        Raises:
            UserError: the data can no longer be read; what was trained until then is saved.
        """
        self._held_out.foretell(self.model, self._pass_seconds, self.stepper.step)
        self._interruption = interruption
        self.ledger.begin(recorder, self.stepper.step, self.stepper.tokens)
        interruption.begin()
        self._saved_at = time.monotonic()
        try:
            status = self._trained()
        except (UserError, OSError):
            self._rescue()
            raise
        self._save(final=True)
        if status is RunStatus.INTERRUPTED:
            self._display.say(f"{interruption.name}: saved after step {self.stepper.step}")
        if status is RunStatus.OK:
            self._check_saved_weights()
        return status

    def _trained(self) -> RunStatus:
        """Train and validate; return how it ended."""
        self._make_up_validation()
        status = self._loop()
        # Printing may block on a terminal that is paused, so the weights are saved first.
        self._flush(show=not self._interruption)
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
        if self.ledger.validated_step != step or isinstance(self._held_out, HeldOut):
            return
        try:
            with self.ledger.clock.pause("validation"), self.stepper.optimizer.kept_weights():
                found = self._held_out.by_length(self.model, self._interruption)
        except Stopped:
            return
        self.ledger.tested(step, found)

    def _rescue(self) -> None:
        """Save the training done before the data, or the disk, failed."""
        self.stepper.blocked(drain=True)  # do not count a step that was not finite
        with suppress(OSError):
            self._flush()
        self._save()
        if self._saved_step == self.stepper.step:
            self._display.say(f"saved after step {self.stepper.step}")

    def _loop(self) -> RunStatus:
        config, stepper, ledger = self.config, self.stepper, self.ledger
        with profiling(config.train.profile, self._folder, self._device) as profiler_step:
            while ledger.share(stepper.step) < 1.0 and not self._interruption:
                taken = stepper.take(ledger.share(stepper.step))
                if ledger.throughput.marks_next():
                    stepper.synchronize()
                ledger.book(taken, stepper.tokens)
                profiler_step()
                if stepper.blocked():
                    return self._not_finite()
                if not self._interruption:
                    self._after_step()
        # The last step's flag may not have arrived from the device yet.
        if stepper.blocked(drain=True):
            return self._not_finite()
        return RunStatus.INTERRUPTED if self._interruption else RunStatus.OK

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
        due = every and step and step % every == 0 and self.ledger.share(step) < 1.0
        if due and self.ledger.validated_step != step and self._validate():
            self._saved_step = None  # the saved checkpoint does not have its val_bpb yet
            self._save()

    def _after_step(self) -> None:
        """Record, validate and save when each is due, but not after the last step."""
        train, step = self.config.train, self.stepper.step
        # Slow steps are shown one by one, so that nobody waits long without an update.
        slow = time.monotonic() - self._flushed_at > SHOWN_SECONDS
        if step % self.config.log.every == 0 or slow:
            self._flush()
        if self.ledger.share(step) >= 1.0:
            return
        if train.val_every and step % train.val_every == 0:
            self._flush()
            if self._validate():
                self._save()
        if self._save_is_due():
            self._save()

    def _flush(self, *, show: bool = True) -> None:
        self.ledger.flush(self.stepper.step, self.stepper.data_wait, show=show)
        self._flushed_at = time.monotonic()

    def _save_is_due(self) -> bool:
        train = self.config.train
        if train.save_every and self.stepper.step % train.save_every == 0:
            return True
        minutes = (time.monotonic() - self._saved_at) / 60
        if self._failed_step is not None and minutes >= RETRY_MINUTES:
            return True
        return train.save_minutes is not None and minutes >= train.save_minutes

    def _validate(self) -> bool:
        """Measure ``val_bpb`` with the weights to save; return whether it is the best so far.

        A validation that a signal stops does not count: nothing is recorded, and it does not
        choose the best checkpoint.
        """
        self.stepper.synchronize()
        try:
            with self.ledger.clock.pause("validation"), self.stepper.optimizer.kept_weights():
                found = self._held_out.score(self.model, self._interruption)
        except Stopped:
            return False
        return self.ledger.validated(self.stepper.step, *found)

    def _save(self, final: bool = False) -> None:
        """Save a checkpoint; a failure during the run is reported once, and retried later."""
        if self.stepper.step in (self._saved_step, self._failed_step) and not final:
            return
        self.stepper.synchronize()
        self._display.activity("saving")
        with self.ledger.clock.pause("checkpoint"):
            try:
                self._write_checkpoint()
            except OSError as error:
                if final:
                    raise
                self._save_failed(error)
        self._saved_at = time.monotonic()
        self._display.activity("")

    def _save_failed(self, error: OSError) -> None:
        line = f"warning: {first_line(error)}; tried again every minute"
        if self._failed_step is None:
            self._display.say(line)
        else:
            _log.info(line)
        self._failed_step = self.stepper.step

    def _write_checkpoint(self) -> None:
        step, ledger = self.stepper.step, self.ledger
        val_bpb = ledger.val_bpb if ledger.validated_step == step else None
        state = {
            "stepper": self.stepper.state_dict(),
            "ledger": ledger.state_dict(),
            "data": self._data_identity(),
        }
        with self.stepper.optimizer.kept_weights():
            weights = {k: v.contiguous() for k, v in self.model.state_dict().items()}
            meta = {"step": step, "val_bpb": val_bpb, "answers": ledger.answers(step)}
            self._store.save(weights, state, meta)
        self._saved_step = step
        if self._failed_step is not None:
            self._failed_step = None
            self._display.say(f"step {step:>6} | saved: checkpoints can be written again")

    def _check_saved_weights(self) -> None:
        """Load the saved weights into a new model and score one batch with both models.

        A signal skips the check, because everything of the run is already on the disk.

        Raises:
            CheckpointError: the two models predict differently.
        """
        sample = self._held_out.one_batch
        newest = self._store.newest()
        assert newest is not None, "the final save was just written"
        scored, what = self._held_out.score, "checking the saved weights"
        try:
            with self.ledger.clock.pause("checkpoint"):
                reloaded = self._build()
                newest.load_weights(reloaded)
                saved = scored(reloaded, self._interruption, what=what, sample=sample).bpb
                with self.stepper.optimizer.kept_weights():
                    found = scored(self.model, self._interruption, what=what, sample=sample)
        except Stopped:
            return
        in_memory = found.bpb
        self.reload_difference = abs(saved - in_memory)
        if not self.reload_difference <= 1e-3 * in_memory:
            raise CheckpointError(
                f"{newest.path}: the saved weights score {saved:.4f} bits per prediction and those "
                f"in memory {in_memory:.4f} on the same data"
            )

    def _data_identity(self) -> dict[str, str | int | None]:
        """What identifies the data; a checkpoint keeps it."""
        return self._data.identity()

    def _build(self) -> LanguageModel:
        return build_model(
            self.config.model,
            backend=self.config.kernels.backend,
            device=self._device,
            allow_slow=self.config.baseline.allow_slow,
            reset_after=self.config.data.reset_after,
        )


def _held_out(
    config: RunConfig, data: AnyRunData, device: torch.device, display: Display
) -> HeldOut | HeldOutAnswers:
    if isinstance(data, TaskData):
        return HeldOutAnswers(config, data, device, display)
    return HeldOut(config, data, device, display)


def _different(data: AnyRunData) -> str:
    """Return the beginning of the error for data that a run was not trained on."""
    differs = "differs from the data that the run was trained on"
    if isinstance(data, TaskData):
        return f"data: the {data.label} with these settings {differs}"
    return f"data.path: {data.label} {differs} (now {len(data.source):,} bytes)"
