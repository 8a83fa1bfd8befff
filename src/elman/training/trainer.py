"""A run from its first step to its last checkpoint: when to step, validate, save and stop."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import torch

from elman.config import RunConfig
from elman.data.batches import Data
from elman.data.files import same_bytes
from elman.data.windows import validation_batches
from elman.errors import RunStatus, UserError
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.training.checkpoints import (
    STATE,
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    DamagedError,
    find_checkpoint,
)
from elman.training.display import Display
from elman.training.integrity import BadFileError
from elman.training.ledger import Ledger
from elman.training.optimizers import TrainingOptimizer
from elman.training.profiling import profiling
from elman.training.recorder import Recorder
from elman.training.signals import Interruption, interruptible
from elman.training.stepper import Stepper
from elman.training.validation import score

SHOWN_SECONDS = 10.0


class Trainer:
    """Trains one model in one run folder.

    Args:
        config: The run's configuration.
        folder: The run folder.
        data: The open data.
        device: Where the model lives.
        store: The run's checkpoints.
        display: What people see.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        data: Data,
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
        self.reload_difference: float | None = None
        self._saved_at = self._flushed_at = time.monotonic()
        self._saved_step: int | None = None

    def start_from(self, place: str) -> None:
        """Take the weights, and nothing else, from another run's checkpoint."""
        find_checkpoint(place).load_weights(self.model)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue the run that saved ``checkpoint``: weights, optimiser, data, clock, numbers.

        Raises:
            DamagedError: the checkpoint is damaged.
            UserError: the data are not what they were, or the budget is used up.
        """
        state = checkpoint.load_state()
        if not {"data", "stepper", "ledger"} <= state.keys():
            raise DamagedError(BadFileError(checkpoint.path / STATE, "damaged (no state of a run)"))
        if not same_bytes(state["data"], self._data_identity()):
            raise UserError(
                f"data.path: {self._data.source.label} is not what the run was "
                f"trained on (now {len(self._data.source):,} bytes); bring those bytes back, or "
                f"start a new run with train.init_from={self._folder}"
            )
        checkpoint.load_weights(self.model)
        self.stepper.load_state_dict(state["stepper"])
        self.ledger.load_state_dict(state["ledger"])
        self._saved_step = self.stepper.step
        if self.ledger.share(self.stepper.step) >= 1.0:
            used = f"{self.stepper.step} steps, {self.ledger.clock.seconds() / 60:.2f} minutes"
            raise UserError(
                f"{self._folder}: its budget is used up ({used}); "
                "name a larger train.steps or train.minutes"
            )

    def first_pass(self) -> None:
        """Build what is missing and prove that a step fits into memory; call before :meth:`run`.

        Raises:
            UserError: the pass cannot be replayed as a graph.
        """
        self._display.activity("first pass (not counted)")
        self.stepper.discarded()
        self._display.activity("")

    def run(self, recorder: Recorder) -> RunStatus:
        """Train until the budget is used up, a number is not finite, or a signal comes.

        Raises:
            UserError: the data can no longer be read; what was trained until then is saved.
        """
        with interruptible() as interruption:
            self.ledger.begin(recorder, self.stepper.step, self.stepper.tokens)
            self._saved_at = time.monotonic()
            try:
                status = self._loop(interruption)
                self._flush()
                if status is RunStatus.OK:
                    self._validate()
            except (UserError, OSError):
                self._rescue()
                raise
            self._save(final=True)
            if status is RunStatus.OK:
                self._check_saved_weights()
        return status

    def _rescue(self) -> None:
        """Save what was trained before the data, or the disk, failed."""
        self.stepper.blocked(drain=True)  # a step that is not finite was not applied
        with suppress(OSError):
            self._flush()
        self._save()
        if self._saved_step == self.stepper.step:
            self._display.say(f"saved after step {self.stepper.step}")

    def _loop(self, interruption: Interruption) -> RunStatus:
        config, stepper, ledger = self.config, self.stepper, self.ledger
        with profiling(config.train.profile, self._folder, self._device) as profiler_step:
            while ledger.share(stepper.step) < 1.0:
                taken = stepper.take(ledger.share(stepper.step))
                if ledger.throughput.marks_next():
                    stepper.synchronize()
                ledger.book(taken, stepper.tokens)
                profiler_step()
                if stepper.blocked():
                    return RunStatus.NAN
                if interruption:
                    self._display.say(f"{interruption.name}: saving after step {stepper.step}")
                    break
                self._after_step()
        # The flag of the last step may still be on its way from the device.
        if stepper.blocked(drain=True):
            return RunStatus.NAN
        return RunStatus.INTERRUPTED if interruption else RunStatus.OK

    def _after_step(self) -> None:
        """Record, validate and save when it is time; not after the last step."""
        train, step = self.config.train, self.stepper.step
        # Slow steps are shown one by one: nobody waits long without a sign.
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

    def _flush(self) -> None:
        self.ledger.flush(self.stepper.step, self.stepper.data_wait)
        self._flushed_at = time.monotonic()

    def _save_is_due(self) -> bool:
        train = self.config.train
        if train.save_every and self.stepper.step % train.save_every == 0:
            return True
        minutes = (time.monotonic() - self._saved_at) / 60
        return train.save_minutes is not None and minutes >= train.save_minutes

    def _validate(self) -> bool:
        """Measure ``val_bpb`` with the weights to keep; return whether it is the best so far."""
        self.stepper.synchronize()
        with self.ledger.clock.pause("validation"), self.stepper.optimizer.kept_weights():
            val_bpb, predicted = self._score(self.model, self.config.data.val_sample)
        self._display.activity("")
        return self.ledger.validated(self.stepper.step, val_bpb, predicted)

    def _score(self, model: LanguageModel, sample: int) -> tuple[float, int]:
        train = self.config.train

        def show(predicted: int) -> None:
            self._display.activity(f"validating {min(1.0, predicted / sample):.0%}")

        batches = validation_batches(
            self._data, self.config.data.val_window, sample, train.batch_size
        )
        return score(model, batches, self._device, train.precision, show)

    def _save(self, final: bool = False) -> None:
        """Save a checkpoint; a failure in mid-run is said, and saving tried again later."""
        if self._saved_step == self.stepper.step and not final:
            return
        self.stepper.synchronize()
        self._display.activity("saving")
        with self.ledger.clock.pause("checkpoint"):
            try:
                self._write_checkpoint()
            except CheckpointError as error:
                if final:
                    raise
                self._display.say(f"warning: {error}")
        self._saved_at = time.monotonic()
        self._display.activity("")

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
            self._store.save(weights, state, {"step": step, "val_bpb": val_bpb})
        self._saved_step = step

    def _check_saved_weights(self) -> None:
        """Load the saved weights into a new model and score one batch with both.

        Raises:
            CheckpointError: they do not predict what the model in memory predicts.
        """
        config = self.config
        one_batch = config.train.batch_size * config.data.val_window
        sample = min(config.data.val_sample, one_batch)
        newest = self._store.newest()
        assert newest is not None, "the final save was just written"
        with self.ledger.clock.pause("checkpoint"):
            reloaded = self._build()
            newest.load_weights(reloaded)
            saved, _ = self._score(reloaded, sample)
            with self.stepper.optimizer.kept_weights():
                in_memory, _ = self._score(self.model, sample)
        self.reload_difference = abs(saved - in_memory)
        if not self.reload_difference <= 1e-3 * in_memory:
            raise CheckpointError(
                f"{newest.path}: the saved weights score {saved:.4f} bits per byte and those in "
                f"memory {in_memory:.4f} on the same bytes"
            )

    def _data_identity(self) -> dict[str, str | int | None]:
        """What tells these bytes from others: names may change, bytes and the split may not."""
        described = self._data.describe()
        keys = ("bytes", "sha256", "sample_sha256", "train_bytes")
        return {key: described[key] for key in keys}

    def _build(self) -> LanguageModel:
        return build_model(
            self.config.model,
            backend=self.config.kernels.backend,
            device=self._device,
            allow_slow=self.config.baseline.allow_slow,
        )
