"""Validates a run when that is due, and in the end; there a task is tested at every length, too."""

from __future__ import annotations

from collections.abc import Callable

from elman.base.exit_status import RunStatus
from elman.base.signals import Interruption, Stopped
from elman.training.checkpoints.retention import SaveReason
from elman.training.checkpoints.store import Checkpoint
from elman.training.display import Display
from elman.training.held_out import HeldOut, Scored
from elman.training.held_out_answers import HeldOutAnswers
from elman.training.listeners.memory_guard import MemoryGuard, Result
from elman.training.listeners.records import Records
from elman.training.listeners.saving import Saver
from elman.training.listeners.totals import Totals
from elman.training.moments import Listener, Moment
from elman.training.training_state import TrainingState


class Validation(Listener):
    """Measures the weights to save, and saves them where they are the best so far.

    Args:
        state: Model and optimizer.
        val_every: ``train.val_every``.
        held_out: Scores the held-out data.
        totals: Takes the numbers.
        records: Records them.
        saver: Saves the best weights.
        guard: Makes room for a validation.
        interruption: A signal that it notes stops a validation.
        display: Shows the numbers.
    """

    def __init__(
        self,
        state: TrainingState,
        val_every: int | None,
        held_out: HeldOut | HeldOutAnswers,
        totals: Totals,
        records: Records,
        saver: Saver,
        guard: MemoryGuard,
        interruption: Interruption,
        display: Display,
    ) -> None:
        self._state, self.held_out, self._totals, self._records = state, held_out, totals, records
        self._every = val_every
        self._saver, self._guard = saver, guard
        self._interruption, self._display = interruption, display

    @property
    def complete(self) -> bool:
        """Whether the newest weights were validated, and those of a task tested."""
        step, totals = self._state.step, self._totals
        tested = isinstance(self.held_out, HeldOut) or totals.tested_step == step
        return totals.validated_step == step and tested

    def recall(self, checkpoint: Checkpoint) -> None:
        """Take over what a checkpoint knows of the validation of its weights."""
        if isinstance(self.held_out, HeldOutAnswers):
            self._totals.recall_answers(checkpoint.meta.get("answers"))
        elif checkpoint.val_bpb is not None:
            self._totals.recall(checkpoint.val_bpb, self.held_out.predicted)

    def training_begins(self, moment: Moment) -> None:
        """Do the validation that a signal stopped, as if the signal had not come."""
        step = self._state.step
        due = self._every and step and step % self._every == 0 and moment.share < 1.0
        if due and self._totals.validated_step != step and self._validate():
            # The saved checkpoint does not have its val_bpb yet.
            self._saver.save_between_steps(SaveReason.MADE_UP)

    def between_steps(self, moment: Moment) -> bool:
        """Validate when that is due, but not after the last step."""
        if moment.share >= 1.0 or not self._every or self._state.step % self._every:
            return False
        self._records.flush()
        if self._validate():
            self._saver.save_between_steps(SaveReason.BEST)
        return True

    def training_ends(self, status: RunStatus, *, stopped: bool) -> None:
        """Measure what the end of a run still lacks, unless a signal comes."""
        if status is not RunStatus.OK or self.complete:
            return
        step = self._state.step
        if self._totals.validated_step != step:
            self._validate()
        answers = self.held_out
        if self._totals.validated_step != step or isinstance(answers, HeldOut):
            return
        try:
            accuracies = self._measured(
                lambda: answers.by_length(self._state.model, self._interruption), "testing"
            )
        except Stopped:
            return
        self._note_test(accuracies)

    def _validate(self) -> bool:
        """Measure ``val_bpb`` with the weights to save; return whether it is the best so far.

        A validation that a signal stops does not count: nothing is recorded, and it does not
        choose the best checkpoint.
        """
        self._state.agree(moments=False)
        self._state.synchronize()
        try:
            scored = self._measured(
                lambda: self.held_out.score(self._state.model, self._interruption), "validating"
            )
        except Stopped:
            return False
        return self._note(scored)

    def _measured(self, measure: Callable[[], Result], what: str) -> Result:
        """Measure the model with the weights to save, while the clock of training stands still."""

        def measured() -> Result:
            pause = self._totals.clock.pause("validation")
            with pause, self._state.optimizer.kept_weights():
                return measure()

        return self._guard.run(what, measured)

    def _note(self, scored: Scored) -> bool:
        """Record and show a validation; return whether it is the best so far."""
        improved, step = self._totals.validated(scored), self._state.step
        values: dict[str, float] = {"val_bpb": scored.bpb, "val_tokens": scored.predicted}
        line = f"step {step:>6} | val_bpb {scored.bpb:.4f}"
        if scored.accuracy is not None:
            values["accuracy"] = scored.accuracy
            line += f" | accuracy {scored.accuracy:.4f}"
        self._records.event("validation", dict(values))
        self._display.say(line)
        if self._totals.accurate:
            self._display.say(
                f"step {step:>6} | train.until_accuracy={self._totals.until_accuracy:g} "
                "reached: training ends"
            )
        return improved

    def _note_test(self, accuracies: dict[int, float]) -> None:
        """Record and show the accuracy at every tested length."""
        self._totals.tested(accuracies)
        values = {f"accuracy at {length}": value for length, value in accuracies.items()}
        self._records.event("test", dict(values))
        line = ", ".join(f"{value:.3f} at {length:,}" for length, value in accuracies.items())
        self._display.say(f"step {self._state.step:>6} | accuracy {line}")
