"""Computes the numbers that :mod:`elman.evaluation.result` defines."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOSS_WINDOW = 100
WARMUP_STEPS = 10
SHORT_RUN_STEPS = 20

SHARED_GPU = "shared GPU"
"""The mark in reports of a run whose ``jobs_per_gpu`` is more than one."""

# Dense bf16 tensor-core peaks in FLOP/s, from NVIDIA's data sheets. Of the names that are part of a
# device's name, the longest one gives its peak.
_PEAK_FLOPS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 6000 Ada": 364e12,
    "RTX 4090": 165e12,
}
# Slower devices whose names contain the name of a faster one: a part of a GPU, and two other chips.
_OTHER_DEVICES = ("MIG", "Laptop", "RTX 4090 D")


def bits_per_byte(nats: float) -> float:
    """Return nats per byte as bits per byte."""
    return nats / math.log(2)


def model_flops_utilization(params: int, tok_s: float, device_name: str) -> float | None:
    """Return 6 * params FLOP per byte, times the bytes per second, over the device's bf16 peak."""
    known = [name for name in _PEAK_FLOPS if name in device_name]
    if not known or any(other in device_name for other in _OTHER_DEVICES):
        return None
    return 6 * params * tok_s / _PEAK_FLOPS[max(known, key=len)]


class LossMeter:
    """The losses of the last 100 optimizer steps, nats per predicted byte."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=LOSS_WINDOW)

    def add(self, loss: float) -> None:
        """Record one optimizer step."""
        self._last.append(loss)

    @property
    def count(self) -> int:
        """Number of steps in the mean."""
        return len(self._last)

    @property
    def mean(self) -> float | None:
        """The defined ``loss``; None before the first step."""
        return sum(self._last) / len(self._last) if self._last else None

    def state_dict(self) -> dict[str, Any]:
        """Return the losses, oldest first."""
        return {"last": list(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self._last = deque(state["last"], maxlen=LOSS_WINDOW)


class TrainingClock:
    """Splits wall time into training and pauses that do not count as training.

    It does not run until :meth:`start`; a resumed run continues from the saved totals.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._started: float | None = None
        self._paused_at: float | None = None
        self.pauses: dict[str, float] = {"validation": 0.0, "checkpoint": 0.0}

    def start(self) -> None:
        """Start (or continue) counting."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Stop counting training time: no step follows."""
        self._before, self._started = self.seconds(), None

    def seconds(self) -> float:
        """Return the training time so far."""
        if self._started is None:
            return self._before
        now = self._paused_at if self._paused_at is not None else time.perf_counter()
        return self._before + now - self._started

    def work(self) -> float:
        """Return the training time so far with all pauses."""
        return self.seconds() + sum(self.pauses.values())

    def forget(self, seconds: float) -> None:
        """Leave out seconds in which the process was stopped; the clock must run."""
        if self._started is not None:
            self._started += seconds

    @contextmanager
    def pause(self, reason: str) -> Iterator[None]:
        """Stop the training clock and count the time under ``reason``."""
        began = self._paused_at = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self._paused_at = None
            if self._started is not None:
                self._started += spent
            self.pauses[reason] += spent

    def state_dict(self) -> dict[str, Any]:
        """Return the totals."""
        return {"seconds": self.seconds(), "pauses": dict(self.pauses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the clock does not run before :meth:`start`."""
        self._before = state["seconds"]
        self.pauses = dict(state["pauses"])


class Throughput:
    """Predicted bytes per second of training time, over the run and over the last window.

    The first ten steps of every session are left out (caches, clocks, allocators settle); a run
    of fewer than twenty steps leaves out one.
    """

    def __init__(self) -> None:
        self._measured = (0, 0.0)
        self._steps = 0
        self._marks: dict[int, tuple[int, float]] = {}
        self._now = (0, 0.0)
        self._window_start = (0, 0.0)

    def begin(self, tokens: int, seconds: float) -> None:
        """Start a session at the totals ``tokens`` and ``seconds``."""
        self._marks = {0: (tokens, seconds)}
        self._now = self._window_start = (tokens, seconds)

    def step(self, tokens: int, seconds: float) -> None:
        """Record the totals after one more step of this session."""
        self._steps += 1
        self._now = (tokens, seconds)
        if self._steps in (1, WARMUP_STEPS):
            self._marks[self._steps] = self._now

    def settle(self, seconds: float) -> None:
        """Record when the device had done the last step: :meth:`step` is told when it was asked."""
        self._now = (self._now[0], seconds)

    def marks_next(self) -> bool:
        """Whether the measurement starts after the next step (then wait for the GPU)."""
        return self._steps + 1 in (1, WARMUP_STEPS)

    def _session(self) -> tuple[int, float]:
        skipped = WARMUP_STEPS if self._steps >= SHORT_RUN_STEPS else min(1, self._steps - 1)
        tokens, seconds = self._marks[max(0, skipped)]
        return self._now[0] - tokens, self._now[1] - seconds

    def rate(self) -> float | None:
        """Return the defined ``tok_s``; None before the first step."""
        if self._steps == 0 and self._measured[1] == 0.0:
            return None
        tokens, seconds = self._session() if self._steps else (0, 0.0)
        tokens, seconds = tokens + self._measured[0], seconds + self._measured[1]
        return tokens / seconds if seconds > 0 else None

    def window(self) -> float | None:
        """Return the rate since the last call, and start the next window."""
        tokens = self._now[0] - self._window_start[0]
        seconds = self._now[1] - self._window_start[1]
        self._window_start = self._now
        return tokens / seconds if seconds > 0 else None

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements of this session and the earlier ones."""
        tokens, seconds = self._session() if self._steps else (0, 0.0)
        return {"measured": [self._measured[0] + tokens, self._measured[1] + seconds]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the measurements of earlier sessions."""
        self._measured = (int(state["measured"][0]), float(state["measured"][1]))
