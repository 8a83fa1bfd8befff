"""Saves the checkpoints of a run: when one is due, what is in it, and once more after a failure."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError, first_line
from elman.data.files import same_bytes
from elman.data.tasks.batches import TaskData
from elman.data.text import AnyRunData
from elman.distributed.team import leader_alone
from elman.sections.training import TrainConfig
from elman.training.checkpoints.integrity import BadFileError
from elman.training.checkpoints.retention import SaveReason
from elman.training.checkpoints.store import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    DamagedError,
)
from elman.training.display import Display
from elman.training.listeners.memory_guard import MemoryGuard
from elman.training.listeners.totals import Totals
from elman.training.moments import Listener, Moment
from elman.training.training_state import TrainingState

RETRY_MINUTES = 1.0
"""Time between two attempts to save when the disk is full."""

_log = logging.getLogger("elman.train")


class Saver(Listener):
    """Writes the state of a run to its store, and takes it up again.

    Args:
        train: Group ``train``, which says when.
        data: The open data; a checkpoint keeps what identifies it.
        store: The run's checkpoints.
        state: What the next step depends on.
        totals: The run's numbers and its clock.
        guard: Makes room for a save between two steps.
        display: Shows what is saved, and what could not be.
    """

    def __init__(
        self,
        train: TrainConfig,
        data: AnyRunData,
        store: CheckpointStore,
        state: TrainingState,
        totals: Totals,
        guard: MemoryGuard,
        display: Display,
    ) -> None:
        self._train, self._data, self._store = train, data, store
        self._state, self._totals, self._guard = state, totals, guard
        self._display = display
        self._saved_at = time.monotonic()
        self._saved_step: int | None = None
        self._failed_step: int | None = None
        self._saves = 0

    @property
    def up_to_date(self) -> bool:
        """Whether the newest checkpoint is that of the newest step."""
        return self._saved_step == self._state.step

    def session_begins(self) -> None:
        """Count the time to the next save from now."""
        self._saved_at = time.monotonic()

    def between_steps(self, moment: Moment) -> bool:
        """Save when that is due, but not after the last step."""
        if moment.save is None or moment.share >= 1.0:
            return False
        self.save_between_steps(moment.save)
        return True

    def save_between_steps(self, reason: SaveReason) -> None:
        """Save a checkpoint beside what the next step keeps in memory."""
        if self._train.checkpoints:
            self._guard.run("saving", lambda: self.save(reason), exchanges=True)

    def due(self) -> SaveReason | None:
        """Return why a checkpoint is due after this step, if one is."""
        train = self._train
        if not train.checkpoints:
            return None
        if train.save_every and self._state.step % train.save_every == 0:
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
        checkpoint.load_weights(self._state.model)
        self._state.load_state_dict(state["stepper"])
        self._totals.load_state_dict(state["ledger"])
        self._saved_step = self._state.step

    def save(self, reason: SaveReason) -> None:
        """Save a checkpoint; a failure during the run is reported once, and retried later.

        Without ``train.checkpoints`` it does nothing.

        Raises:
            OSError: it cannot be written, and the reason requires it.
        """
        if not self._train.checkpoints:
            return
        if reason.repeats:
            self._saved_step = None
        step = self._state.step
        if step in (self._saved_step, self._failed_step) and not reason.required:
            return
        _log.info("step %d: saving, because %s", step, reason.text)
        self._state.synchronize()
        self._display.activity("saving")
        with self._totals.clock.pause("checkpoint"):
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
        self._failed_step = self._state.step

    def _write_checkpoint(self) -> None:
        state, totals = self._state, self._totals
        step = state.step
        state.agree(moments=True)
        val_bpb = totals.val_bpb if totals.validated_step == step else None
        saved = {
            "stepper": state.state_dict(),
            "ledger": totals.state_dict(),
            "data": self._data.identity(),
        }
        with state.optimizer.kept_weights():
            weights = {k: v.contiguous() for k, v in state.model.state_dict().items()}
            if state.reduction.sharded:
                from elman.distributed.sharding import whole  # the import takes time

                weights, saved = whole((weights, saved), keep=state.team.place.leads)
            meta = {"step": step, "val_bpb": val_bpb, "answers": totals.answers()}
            self._write(weights, saved, meta)
        self._saved_step = step
        if self._failed_step is not None:
            self._failed_step = None
            self._display.say(f"step {step:>6} | saved: checkpoints can be written again")

    def _write(self, weights: dict[str, Any], state: dict[str, Any], meta: dict[str, Any]) -> None:
        """Let rank 0 write a checkpoint, and every rank learn whether it could.

        Raises:
            OSError: it could not.
        """
        team = self._state.team
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
        said = team.from_leader(f"saved/{self._saves}", written)
        if said:
            raise errors[0] if errors else CheckpointError(said)


def _different(data: AnyRunData) -> str:
    """Return the beginning of the error for data that a run was not trained on."""
    differs = "differs from the data that the run was trained on"
    if isinstance(data, TaskData):
        return f"data: the {data.label} with these settings {differs}"
    return f"data.path: {data.label} {differs} (now {len(data.source):,} bytes)"
