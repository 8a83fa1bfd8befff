"""The totals of a run: its losses, rates and times, over all its sessions."""

from __future__ import annotations

from typing import Any

from elman.base.exit_status import RunStatus
from elman.base.signals import Interruption
from elman.base.units import duration
from elman.devices.environment import device_name, peak_memory
from elman.devices.sharing import jobs_on
from elman.evaluation.metrics import (
    LossMeter,
    Throughput,
    TrainingClock,
    bits_per_byte,
    model_flops_utilization,
)
from elman.evaluation.result import RunResult, Seconds
from elman.training.contention import ContentionWatch
from elman.training.display import Display
from elman.training.held_out import Scored
from elman.training.moments import Listener, Step
from elman.training.suspension import Suspension
from elman.training.training_state import TrainingState


class Totals(Listener):
    """Keeps the defined numbers of a run, and its training clock.

    Args:
        state: Counts steps and bytes, and what they used of the budget.
        until_accuracy: ``train.until_accuracy``.
        interruption: Knows whether the process was stopped and goes on.
        display: Says so.

    Attributes:
        pass_seconds: Seconds of a step, before there are any.
        peak_of_ranks: The largest peak memory of all ranks; None before they exchanged it.
        non_finite: What was not finite, in words; None if all was.
        val_bpb: Of the last validation.
        validated_step: The step that it validated.
        accuracy: Of a task: that of the last validation.
        tested_step: Of a task: the step whose accuracy at every length is known.
    """

    def __init__(
        self,
        state: TrainingState,
        until_accuracy: float | None,
        interruption: Interruption,
        display: Display,
    ) -> None:
        self._state, self.until_accuracy = state, until_accuracy
        self._interruption, self._display = interruption, display
        self.peak_of_ranks: int | None = None
        self.clock, self.losses, self.throughput = TrainingClock(), LossMeter(), Throughput()
        self.val_bpb: float | None = None
        self.best_val_bpb: float | None = None
        self.val_tokens = 0
        self.validated_step: int | None = None
        self.accuracy: float | None = None
        self.accuracy_by_length: dict[int, float] = {}
        self.tested_step: int | None = None
        self.contention = ContentionWatch(state.device, state.team.processes)
        self.jobs_per_gpu = jobs_on(state.device.type)
        self.non_finite: str | None = None
        self.pass_seconds = 0.0
        self._suspension = Suspension(self.clock, 0.0)
        self._earlier_seconds: float | None = None

    @property
    def session_seconds(self) -> float:
        """Seconds of training, validating and saving in this session."""
        return 0.0 if (before := self._earlier_seconds) is None else self.clock.work() - before

    def session_begins(self) -> None:
        """Start the clock."""
        self.throughput.begin(self._state.tokens, self.clock.seconds())
        self.contention.begin()
        self.clock.start()
        self._earlier_seconds = self.clock.work()
        self._suspension = Suspension(self.clock, self.pass_seconds)

    def step_begins(self) -> None:
        """Note when a step begins."""
        self.forget_stop()
        self._suspension.begins()

    def step_ends(self, step: Step) -> None:
        """Count one optimizer step."""
        if self.throughput.marks_next():
            self._state.synchronize()
        self.forget_stop()
        self.throughput.step(self._state.tokens, self.clock.seconds())

    def training_ends(self, status: RunStatus, *, stopped: bool) -> None:
        """Count the time until now: the device has done the last step."""
        if status is not RunStatus.NAN:
            self.throughput.settle(self.clock.seconds())
        self.clock.stop()

    def forget_stop(self) -> None:
        """Do not count the time in which this process was stopped, and say so."""
        if seconds := self._suspension.forgiven(self._interruption):
            self._display.say(f"stopped for {duration(seconds)}, which does not count as training")

    def share(self) -> float:
        """Return the used share of the budget: of the budget that is used most.

        It is 1 as soon as a validation reached ``train.until_accuracy``.
        """
        if self.accurate:
            return 1.0
        return self._state.budget.share(self._state.step, self.clock.seconds())

    @property
    def accurate(self) -> bool:
        """Whether the last validation reached ``train.until_accuracy``."""
        least = self.until_accuracy
        return least is not None and self.accuracy is not None and self.accuracy >= least

    def validated(self, scored: Scored) -> bool:
        """Take over a validation of the newest step; return whether it is the best so far."""
        self.val_bpb, self.val_tokens, self.accuracy = scored
        self.validated_step = self._state.step
        improved = self.best_val_bpb is None or scored.bpb < self.best_val_bpb
        self.best_val_bpb = scored.bpb if improved else self.best_val_bpb
        return improved

    def tested(self, accuracies: dict[int, float]) -> None:
        """Take over the accuracy of the newest step at every tested length."""
        self.accuracy_by_length, self.tested_step = accuracies, self._state.step

    def recall(self, val_bpb: float, predicted: int) -> None:
        """Take over the validation of saved weights; it may be newer than the saved state."""
        self.val_bpb, self.val_tokens, self.validated_step = val_bpb, predicted, self._state.step
        self.best_val_bpb = min(val_bpb, self.best_val_bpb or val_bpb)

    def answers(self) -> dict[str, Any] | None:
        """Return what is known of the answers of the newest weights; None for text."""
        step = self._state.step
        if self.accuracy is None or self.validated_step != step:
            return None
        tested = self.accuracy_by_length if self.tested_step == step else {}
        by_length = {str(length): value for length, value in tested.items()}
        known = {"val_bpb": self.val_bpb, "val_tokens": self.val_tokens, "accuracy": self.accuracy}
        return {**known, "accuracy_by_length": by_length}

    def recall_answers(self, answers: dict[str, Any] | None) -> None:
        """Take over what a checkpoint has of :meth:`answers`; it may be newer than its state."""
        if answers is None:
            return
        self.recall(answers["val_bpb"], answers["val_tokens"])
        self.accuracy = answers["accuracy"]
        if by_length := answers["accuracy_by_length"]:
            self.accuracy_by_length = {int(length): value for length, value in by_length.items()}
            self.tested_step = self._state.step

    def fill(self, result: RunResult) -> None:
        """Set every number of the run so far.

        Args:
            result: The result of the run.
        """
        state, seconds = self._state, self.clock.seconds()
        loss, rate, params = self.losses.mean, self.throughput.rate(), state.model.num_params()
        result.contended = self.contention.contended
        result.jobs_per_gpu = self.jobs_per_gpu
        result.params, result.steps, result.tokens = params, state.step, state.tokens
        result.flops = state.budget.flops_at(state.step)
        result.flops_per_byte = state.budget.flops_per_byte
        result.budget = state.budget.report(state.step, seconds)
        result.loss, result.loss_steps = loss, self.losses.count
        each = state.budget.bytes_per_token
        result.bpb = None if loss is None else bits_per_byte(loss / each)
        result.val_bpb, result.best_val_bpb = self.val_bpb, self.best_val_bpb
        result.val_tokens, result.val_step = self.val_tokens, self.validated_step
        result.accuracy, result.reached_accuracy = self.accuracy, self.accurate
        result.accuracy_by_length = {str(k): v for k, v in self.accuracy_by_length.items()}
        result.tok_s, result.mfu = rate, self._mfu(params, rate)
        result.peak_memory_bytes = self.peak_of_ranks or peak_memory(state.device)
        result.data_wait_share = state.micro_batches.wait / seconds if seconds > 0 else None
        result.seconds = Seconds(train=seconds, **self.clock.pauses)

    def _mfu(self, params: int, rate: float | None) -> float | None:
        device = self._state.device
        if rate is None or device.type != "cuda":
            return None
        each = rate / self._state.team.place.size
        return model_flops_utilization(params, each, device_name(device))

    def collect(self) -> None:
        """Let the result say what all ranks used, not rank 0 alone."""
        team, contended = self._state.team, self.contention.contended
        rows = team.gather(
            peak_memory(self._state.device), contended is not None, contended is True
        )
        if not team.place.alone:
            self.peak_of_ranks = int(max(row[0] for row in rows))
            watched = any(row[1] for row in rows)
            self.contention.contended = any(row[2] for row in rows) if watched else None

    def state_dict(self) -> dict[str, Any]:
        """Return all totals and losses, for a resumed run."""
        return {
            "clock": self.clock.state_dict(),
            "losses": self.losses.state_dict(),
            "throughput": self.throughput.state_dict(),
            "contended": self.contention.contended,
            "jobs_per_gpu": self.jobs_per_gpu,
            "validation": [
                self.val_bpb,
                self.best_val_bpb,
                self.val_tokens,
                self.validated_step,
            ],
            "accuracy": self.accuracy,
            "tested": [self.tested_step, self.accuracy_by_length],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the totals and losses of an earlier session."""
        self.clock.load_state_dict(state["clock"])
        self.losses.load_state_dict(state["losses"])
        self.throughput.load_state_dict(state["throughput"])
        self.contention.recall(state.get("contended"))  # missing in the oldest checkpoints
        if (before := state.get("jobs_per_gpu")) is not None:
            self.jobs_per_gpu = max(before, self.jobs_per_gpu or 1)
        self.val_bpb, self.best_val_bpb, self.val_tokens, self.validated_step = state["validation"]
        self.accuracy = state.get("accuracy")  # missing in checkpoints from before the tasks
        self.tested_step, self.accuracy_by_length = state.get("tested", (None, {}))
