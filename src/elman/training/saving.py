"""Saves the checkpoints of a run: when one is due, what is in it, and once more after a failure."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError, first_line
from elman.config.run_config import RunConfig
from elman.data.batches import AnyRunData
from elman.data.files import same_bytes
from elman.data.tasks.batches import TaskData
from elman.distributed.team import leader_alone
from elman.training.checkpoints.integrity import BadFileError
from elman.training.checkpoints.retention import SaveReason
from elman.training.checkpoints.store import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    DamagedError,
)
from elman.training.display import Display
from elman.training.ledger import Ledger
from elman.training.stepper import Stepper

RETRY_MINUTES = 1.0
"""Time between two attempts to save when the disk is full."""

_log = logging.getLogger("elman.train")


class Saver:
    """Writes the state of a run to its store, and takes it up again.

    Args:
        config: The run's configuration.
        data: The open data; a checkpoint keeps what identifies it.
        store: The run's checkpoints.
        stepper: Model, optimizer, position in the data, and the ranks.
        ledger: The run's numbers and its clock.
        display: Shows what is saved, and what could not be.
    """

    def __init__(
        self,
        config: RunConfig,
        data: AnyRunData,
        store: CheckpointStore,
        stepper: Stepper,
        ledger: Ledger,
        display: Display,
    ) -> None:
        self._train, self._data, self._store = config.train, data, store
        self._sharded = config.parallel.shard != "none"
        self._stepper, self._ledger, self._display = stepper, ledger, display
        self._saved_at = time.monotonic()
        self._saved_step: int | None = None
        self._failed_step: int | None = None
        self._saves = 0

    @property
    def up_to_date(self) -> bool:
        """Whether the newest checkpoint is that of the newest step."""
        return self._saved_step == self._stepper.step

    def begin(self) -> None:
        """Count the time to the next save from now."""
        self._saved_at = time.monotonic()

    def due(self) -> SaveReason | None:
        """Return why a checkpoint is due after this step, if one is."""
        train = self._train
        if train.save_every and self._stepper.step % train.save_every == 0:
            return SaveReason.STEPS
        minutes = (time.monotonic() - self._saved_at) / 60
        if self._failed_step is not None and minutes >= RETRY_MINUTES:
            return SaveReason.RETRY
        if train.save_minutes is not None and minutes >= train.save_minutes:
            return SaveReason.MINUTES
        return None

    def restore(self, checkpoint: Checkpoint, run: Path) -> None:
        """Load weights, optimizer, data position, clock and numbers from a checkpoint of ``run``.

        Raises:
            DamagedError: the checkpoint is damaged.
            UserError: the data changed.
        """
        state = checkpoint.load_state()
        if not {"data", "stepper", "ledger"} <= state.keys():
            what = "damaged (it does not hold the state of a run)"
            raise DamagedError(BadFileError(checkpoint.path / run_files.STATE, what))
        if not same_bytes(state["data"], self._data.identity()):
            raise UserError(
                f"{_different(self._data)}; restore that data, or start a new run with "
                f"train.init_from={run}"
            )
        checkpoint.load_weights(self._stepper.model)
        self._stepper.load_state_dict(state["stepper"])
        self._ledger.load_state_dict(state["ledger"])
        self._saved_step = self._stepper.step

    def save(self, reason: SaveReason) -> None:
        """Save a checkpoint; a failure during the run is reported once, and retried later.

        Raises:
            OSError: it cannot be written, and the reason requires it.
        """
        if reason.repeats:
            self._saved_step = None
        step = self._stepper.step
        if step in (self._saved_step, self._failed_step) and not reason.required:
            return
        _log.info("step %d: saving, because %s", step, reason.text)
        self._stepper.synchronize()
        self._display.activity("saving")
        with self._ledger.clock.pause("checkpoint"):
            try:
                self._write_checkpoint()
            except OSError as error:
                if reason.required:
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
        self._failed_step = self._stepper.step

    def _write_checkpoint(self) -> None:
        stepper, ledger = self._stepper, self._ledger
        step = stepper.step
        stepper.agree(moments=True)
        val_bpb = ledger.val_bpb if ledger.validated_step == step else None
        state = {
            "stepper": stepper.state_dict(),
            "ledger": ledger.state_dict(),
            "data": self._data.identity(),
        }
        with stepper.optimizer.kept_weights():
            weights = {k: v.contiguous() for k, v in stepper.model.state_dict().items()}
            if self._sharded:
                from elman.distributed.sharding import whole  # the import takes time

                weights, state = whole((weights, state), keep=stepper.team.place.leads)
            meta = {"step": step, "val_bpb": val_bpb, "answers": ledger.answers(step)}
            self._write(weights, state, meta)
        self._saved_step = step
        if self._failed_step is not None:
            self._failed_step = None
            self._display.say(f"step {step:>6} | saved: checkpoints can be written again")

    def _write(self, weights: dict[str, Any], state: dict[str, Any], meta: dict[str, Any]) -> None:
        """Let rank 0 write a checkpoint, and every rank learn whether it could.

        Raises:
            OSError: it could not.
        """
        team = self._stepper.team
        errors: list[OSError] = []

        def written() -> str:
            try:
                with leader_alone(team, "saving"):
                    self._store.save(weights, state, meta)
            except OSError as error:
                errors.append(error)
                return first_line(error)
            return ""

        self._saves += 1
        said = team.told(f"saved/{self._saves}", written)
        if said:
            raise errors[0] if errors else CheckpointError(said)


def _different(data: AnyRunData) -> str:
    """Return the beginning of the error for data that a run was not trained on."""
    differs = "differs from the data that the run was trained on"
    if isinstance(data, TaskData):
        return f"data: the {data.label} with these settings {differs}"
    return f"data.path: {data.label} {differs} (now {len(data.source):,} bytes)"
