"""Collects a run's losses, rates and times, and passes them to the recorder and the display."""

from __future__ import annotations

import math
from typing import Any

import torch

from elman.config.run_config import RunConfig
from elman.devices.environment import device_name, peak_memory
from elman.devices.sharing import jobs_on
from elman.distributed.team import ALONE, Team
from elman.evaluation.metrics import (
    LossMeter,
    Throughput,
    TrainingClock,
    bits_per_byte,
    model_flops_utilization,
)
from elman.evaluation.result import RunResult, Seconds
from elman.training.budget import Budget
from elman.training.contention import ContentionWatch
from elman.training.display import Display, Progress
from elman.training.recorder import Recorder
from elman.training.stepper import Step


class Ledger:
    """Turns optimizer steps into the defined numbers.

    Losses stay on the device until :meth:`flush`, so that the host need not wait for the GPU at
    every step.
    """

    def __init__(
        self,
        config: RunConfig,
        display: Display,
        device: torch.device,
        budget: Budget,
        team: Team = ALONE,
    ) -> None:
        self._config, self._display, self._device = config, display, device
        self._budget, self._ranks = budget, team.place.size
        self.peak_of_ranks: int | None = None
        self._recorder: Recorder | None = None
        self.clock, self.losses, self.throughput = TrainingClock(), LossMeter(), Throughput()
        self.val_bpb: float | None = None
        self.best_val_bpb: float | None = None
        self.val_tokens = 0
        self.validated_step: int | None = None
        self.accuracy: float | None = None
        self.accuracy_by_length: dict[int, float] = {}
        self.tested_step: int | None = None
        self.contention = ContentionWatch(device, team.processes)
        self.jobs_per_gpu = jobs_on(device.type)
        self.non_finite: str | None = None
        self._pending: list[Step] = []

    def share(self, step: int) -> float:
        """Return the used share of the budget at ``step``: of the budget that is used most.

        It is 1 as soon as a validation reached ``train.until_accuracy``.
        """
        return 1.0 if self.accurate else self._budget.share(step, self.clock.seconds())

    @property
    def accurate(self) -> bool:
        """Whether the last validation reached ``train.until_accuracy``."""
        wanted = self._config.train.until_accuracy
        return wanted is not None and self.accuracy is not None and self.accuracy >= wanted

    @property
    def recorder(self) -> Recorder:
        """The recorder that writes the numbers of this session."""
        assert self._recorder is not None, "the session has not begun"
        return self._recorder

    @property
    def begun(self) -> bool:
        """Whether a session has begun: its clock runs, and its numbers are recorded."""
        return self._recorder is not None

    def begin(self, recorder: Recorder, step: int, tokens: int) -> None:
        """Start a session: its records go to ``recorder``, and its clock starts now."""
        self._recorder = recorder
        recorder.begin(step)
        train = self._config.train
        values: dict[str, Any] = {"batch_size": train.batch_size, "chunk_size": train.chunk_size}
        if train.flops is not None:
            values["flops_per_byte"] = self._budget.flops_per_byte
        recorder.event("session", step, values)
        self.throughput.begin(tokens, self.clock.seconds())
        self.contention.begin()
        self.clock.start()

    def book(self, taken: Step, tokens: int) -> None:
        """Record one optimizer step."""
        self._pending.append(taken)
        self.throughput.step(tokens, self.clock.seconds())

    def settle(self) -> None:
        """Count the time until now: the device has done the last step that was booked."""
        self.throughput.settle(self.clock.seconds())

    def flush(self, applied: int, data_wait: float, *, show: bool = True) -> None:
        """Fetch, record and show the steps since the last flush.

        Args:
            applied: The last step whose update was applied; later ones are recorded as not applied.
            data_wait: Seconds spent waiting for data so far.
            show: Whether to display them, too. False before a save, which must not wait for a
                blocked terminal.
        """
        if not self._pending:
            return
        values = torch.stack([torch.stack((s.loss, s.grad_norm)) for s in self._pending]).tolist()
        records: list[dict[str, Any]] = []
        good: list[float] = []
        for taken, (loss, norm) in zip(self._pending, values, strict=True):
            record = {"step": taken.step, "loss": _number(loss), "lr": taken.lr}
            record["grad_norm"] = _number(norm)
            if taken.step <= applied:
                self.losses.add(loss)
                good.append(loss)
            else:
                record["applied"] = False
                self.non_finite = self.non_finite or _not_finite(loss)
            records.append(record)
        lr = self._pending[-1].lr
        self._pending.clear()
        self.recorder.steps(records)
        if good:
            self._window(applied, sum(good) / len(good), lr, data_wait, show)

    def validated(
        self, step: int, val_bpb: float, predicted: int, accuracy: float | None = None
    ) -> bool:
        """Record a validation; return whether it is the best so far."""
        self.val_bpb, self.val_tokens, self.validated_step = val_bpb, predicted, step
        self.accuracy = accuracy
        values: dict[str, float] = {"val_bpb": val_bpb, "val_tokens": predicted}
        line = f"step {step:>6} | val_bpb {val_bpb:.4f}"
        if accuracy is not None:
            values["accuracy"] = accuracy
            line += f" | accuracy {accuracy:.4f}"
        self.recorder.event("validation", step, values)
        self._display.say(line)
        if self.accurate:
            self._display.say(
                f"step {step:>6} | train.until_accuracy={self._config.train.until_accuracy:g} "
                "reached: training ends"
            )
        improved = self.best_val_bpb is None or val_bpb < self.best_val_bpb
        self.best_val_bpb = val_bpb if improved else self.best_val_bpb
        return improved

    def tested(self, step: int, accuracies: dict[int, float]) -> None:
        """Record the accuracy at every tested length."""
        self.accuracy_by_length, self.tested_step = accuracies, step
        values = {f"accuracy at {length}": value for length, value in accuracies.items()}
        self.recorder.event("test", step, dict(values))
        told = ", ".join(f"{value:.3f} at {length:,}" for length, value in accuracies.items())
        self._display.say(f"step {step:>6} | accuracy {told}")

    def recall(self, step: int, val_bpb: float, predicted: int) -> None:
        """Take over the validation of saved weights; it may be newer than the saved state."""
        self.val_bpb, self.val_tokens, self.validated_step = val_bpb, predicted, step
        self.best_val_bpb = min(val_bpb, self.best_val_bpb or val_bpb)

    def answers(self, step: int) -> dict[str, Any] | None:
        """Return what is known of the answers of exactly these weights; None for text."""
        if self.accuracy is None or self.validated_step != step:
            return None
        tested = self.accuracy_by_length if self.tested_step == step else {}
        by_length = {str(length): value for length, value in tested.items()}
        known = {"val_bpb": self.val_bpb, "val_tokens": self.val_tokens, "accuracy": self.accuracy}
        return {**known, "accuracy_by_length": by_length}

    def recall_answers(self, step: int, found: dict[str, Any] | None) -> None:
        """Take over what a checkpoint has of :meth:`answers`; it may be newer than its state."""
        if found is None:
            return
        self.recall(step, found["val_bpb"], found["val_tokens"])
        self.accuracy = found["accuracy"]
        if by_length := found["accuracy_by_length"]:
            self.accuracy_by_length = {int(length): value for length, value in by_length.items()}
            self.tested_step = step

    def fill(
        self, result: RunResult, params: int, step: int, tokens: int, data_wait: float
    ) -> None:
        """Set every number of the run so far.

        Args:
            result: The result of the run.
            params: Parameters of the model.
            step: Optimizer steps that were applied.
            tokens: Bytes that they predicted.
            data_wait: Seconds spent waiting for data.
        """
        loss, rate = self.losses.mean, self.throughput.rate()
        seconds = self.clock.seconds()
        result.contended = self.contention.contended
        result.jobs_per_gpu = self.jobs_per_gpu
        result.params, result.steps, result.tokens = params, step, tokens
        result.flops = self._budget.flops_at(step)
        result.flops_per_byte = self._budget.flops_per_byte
        result.budget = self._budget.report(step, seconds)
        result.loss, result.loss_steps = loss, self.losses.count
        result.bpb = None if loss is None else bits_per_byte(loss)
        result.val_bpb, result.best_val_bpb = self.val_bpb, self.best_val_bpb
        result.val_tokens, result.val_step = self.val_tokens, self.validated_step
        result.accuracy, result.reached_accuracy = self.accuracy, self.accurate
        result.accuracy_by_length = {str(k): v for k, v in self.accuracy_by_length.items()}
        result.tok_s, result.mfu = rate, self._mfu(params, rate)
        result.peak_memory_bytes = self.peak_of_ranks or peak_memory(self._device)
        result.data_wait_share = data_wait / seconds if seconds > 0 else None
        result.seconds = Seconds(train=seconds, **self.clock.pauses)

    def _mfu(self, params: int, rate: float | None) -> float | None:
        if rate is None or self._device.type != "cuda":
            return None
        return model_flops_utilization(params, rate / self._ranks, device_name(self._device))

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

    def _window(self, step: int, loss: float, lr: float, data_wait: float, show: bool) -> None:
        self.contention.sample()
        rate, seconds = self.throughput.window(), self.clock.seconds()
        share, memory, bpb = self.share(step), peak_memory(self._device), bits_per_byte(loss)
        values = {
            "loss": loss,
            "bpb": bpb,
            "tok_s": rate,
            "train_seconds": seconds,
            "data_wait_seconds": data_wait,
            "peak_memory_bytes": memory,
        }
        self.recorder.event("window", step, values)
        if not show:
            return
        left = seconds * (1 - share) / share if share > 0 else None
        self._display.update(Progress(step, share, loss, bpb, lr, rate, left, memory))


def _not_finite(loss: float) -> str:
    """Return why the update of a step was not applied, in words."""
    return "gradient" if math.isfinite(loss) else "loss"


def _number(value: float) -> float | None:
    """JSON has no NaN: a number that is not finite is written as null."""
    return value if math.isfinite(value) else None
