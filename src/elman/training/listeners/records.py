"""Records the steps of a run and shows them, some at a time.

Losses stay on the device until then, so that the host need not wait for the GPU at every step.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from elman.base.exit_status import RunStatus
from elman.devices.environment import peak_memory
from elman.distributed.team import leader_alone
from elman.evaluation.metrics import bits_per_byte
from elman.sections.training import TrainConfig
from elman.training.display import Display, Progress
from elman.training.listeners.totals import Totals
from elman.training.moments import Listener, Moment, Step
from elman.training.recorder import Recorder
from elman.training.training_state import TrainingState

SHOWN_SECONDS = 10.0
"""A line is shown at least this often, however rarely ``log.every`` asks for one."""


class Records(Listener):
    """Writes a record of every step, of some steps together, and of what else happens.

    Args:
        state: Counts the steps that were applied.
        totals: The numbers of the run.
        every: ``log.every``.
        display: Shows the same to people.
    """

    def __init__(self, state: TrainingState, totals: Totals, every: int, display: Display) -> None:
        self._state, self._totals, self._display = state, totals, display
        self._every = every
        self._recorder: Recorder | None = None
        self._pending: list[Step] = []
        self._flushed_at = time.monotonic()

    @property
    def begun(self) -> bool:
        """Whether a session has begun, whose numbers are recorded."""
        return self._recorder is not None

    def open(self, recorder: Recorder, train: TrainConfig) -> None:
        """Begin a session.

        Args:
            recorder: Where its records go.
            train: Group ``train``, of which reports need the sizes.
        """
        self._recorder = recorder
        recorder.begin(self._state.step)
        values: dict[str, Any] = {"batch_size": train.batch_size, "chunk_size": train.chunk_size}
        self.event("session", values | self._state.budget.rates())

    def event(self, kind: str, values: dict[str, Any]) -> None:
        """Record what happened after the newest step."""
        assert self._recorder is not None, "the session has not begun"
        self._recorder.event(kind, self._state.step, values)

    def step_ends(self, step: Step) -> None:
        """Keep the step until the next :meth:`flush`."""
        self._pending.append(step)

    def between_steps(self, moment: Moment) -> bool:
        """Record and show the last steps when that is due."""
        # Slow steps are shown one by one, so that nobody waits long without an update.
        slow = time.monotonic() - self._flushed_at > SHOWN_SECONDS
        if self._state.step % self._every == 0 or slow:
            self.flush()
        return False

    def training_ends(self, status: RunStatus, *, stopped: bool) -> None:
        """Record and show the last steps."""
        # Printing may block on a terminal that is paused, so the weights are saved first.
        self.flush(show=not stopped)

    def flush(self, *, show: bool = True) -> None:
        """Fetch, record and show the steps since the last flush.

        Args:
            show: Whether to display them, too. False before a save, which must not wait for a
                blocked terminal.
        """
        state = self._state
        if not state.team.place.alone:
            state.synchronize()
        with leader_alone(state.team, "showing"):  # a terminal may be paused
            if self._pending:
                self._flush(show)
        self._flushed_at = time.monotonic()

    def _flush(self, show: bool) -> None:
        """Write the pending steps; those after the last applied one are recorded as not applied."""
        assert self._recorder is not None, "the session has not begun"
        values = torch.stack([torch.stack((s.loss, s.grad_norm)) for s in self._pending]).tolist()
        records: list[dict[str, Any]] = []
        good: list[float] = []
        for step, (loss, norm) in zip(self._pending, values, strict=True):
            record = {"step": step.step, "loss": _number(loss), "lr": step.lr}
            record["grad_norm"] = _number(norm)
            if step.step <= self._state.step:
                self._totals.losses.add(loss)
                good.append(loss)
            else:
                record["applied"] = False
                self._totals.non_finite = self._totals.non_finite or _not_finite(loss)
            records.append(record)
        lr = self._pending[-1].lr
        self._pending.clear()
        self._recorder.steps(records)
        if good:
            self._window(sum(good) / len(good), lr, show)

    def _window(self, loss: float, lr: float, show: bool) -> None:
        """Record rates over the steps since the last window."""
        totals, state = self._totals, self._state
        totals.contention.sample()
        rate, seconds = totals.throughput.window(), totals.clock.seconds()
        share, memory = totals.share(), peak_memory(state.device)
        bpb = bits_per_byte(loss / state.budget.bytes_per_token)
        values = {
            "loss": loss,
            "bpb": bpb,
            "tok_s": rate,
            "train_seconds": seconds,
            "data_wait_seconds": state.micro_batches.wait,
            "peak_memory_bytes": memory,
        }
        self.event("window", values)
        if not show:
            return
        left = seconds * (1 - share) / share if share > 0 else None
        self._display.update(Progress(state.step, share, loss, bpb, lr, rate, left, memory))


def _not_finite(loss: float) -> str:
    """Return why the update of a step was not applied, in words."""
    return "gradient" if math.isfinite(loss) else "loss"


def _number(value: float) -> float | None:
    """JSON has no NaN: a number that is not finite is written as null."""
    return value if math.isfinite(value) else None
