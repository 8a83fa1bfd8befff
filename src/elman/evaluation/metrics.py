"""Defines every number. Trainer, reports and benchmarks take their figures only from here."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elman.sections.budget import BUDGETS

LOSS_WINDOW = 100
WARMUP_STEPS = 10
SHORT_RUN_STEPS = 20

METRICS_VERSION = 1

DEFINITIONS = {
    "metrics_version": (
        "counts up whenever a definition changes: numbers of different versions are not compared"
    ),
    "params": "parameters of the instantiated model, tied weights counted once",
    "steps": "optimizer steps whose update was applied",
    "tokens": "predicted bytes in those steps, over all ranks; of a task: positions read",
    "flops": "flops_per_byte times tokens; null if the operations of the cell cannot be counted",
    "flops_per_byte": (
        "floating-point operations of training for one predicted byte, mean over a row, from the "
        "model's equations, whatever computes them. Forward: 2 for each multiply-add of a product "
        "(weights with the head, convolutions, reads of states, attention), 1 for each other "
        "operation on a number of a matrix state; without the embedding's lookup and without work "
        "on vectors alone (norms, activations, gates, vector states). Backward: twice the forward "
        "pass; nothing that is recomputed"
    ),
    "budget": (
        f"of each limit of the run ({', '.join(BUDGETS)}) what was set and what was spent; "
        "the first that is spent ends training, with the step that reaches it"
    ),
    "loss": (
        f"mean nats per predicted byte over the last {LOSS_WINDOW} optimizer steps "
        "(over loss_steps of them if the run was shorter); of a task: nats per answer"
    ),
    "bpb": "loss / ln 2: bits per predicted byte, training data; of a task: bits per answer",
    "val_bpb": (
        "bits per predicted byte on val_tokens bytes of the held-out tail of the data: "
        "evenly spaced fixed windows of data.val_window bytes, each from zero state; with "
        "data.reset_at_documents also zero after each byte 0x1e; of a task: bits per answer on "
        "data.val_rows fixed rows of the trained length, with val_tokens answers"
    ),
    "accuracy": (
        "of a task: share of right answers on data.val_rows fixed rows of the trained length, at "
        "the last validation; right: the most probable symbol is the answer; null for text"
    ),
    "accuracy_by_length": (
        "of a task: share of right answers on data.test_rows fixed rows of each length in "
        "data.lengths, with the weights at the end of training; empty for text, or if it ended "
        "early"
    ),
    "data.chance": (
        "of a task: share of right answers of the best blind guess on rows of the trained length: "
        "always the same answer, or the most frequent one at each position, or after each present "
        "symbol, whichever is right most often; measured on rows that no run trains on"
    ),
    "data.chance_by_length": "the same on rows of each tested length",
    "reached_accuracy": "a validation reached train.until_accuracy, and training ended there",
    "best_val_bpb": "smallest val_bpb of all validations of the run",
    "tok_s": (
        "predicted bytes per second of training time after the first 10 steps of each session "
        "(after the first step in a run of fewer than 20), without validation and checkpoints"
    ),
    "peak_memory_bytes": (
        "GPU: largest memory held by tensors; CPU: largest resident size of the process"
    ),
    "data_wait_share": "share of training time spent waiting for the next batch",
    "mfu": "6 * params * tok_s over the device's dense bf16 peak; null where the peak is unknown",
    "seconds.train": (
        "training time: wall time after one discarded step, without validation and checkpoints"
    ),
    "contended": (
        "another process used the GPU during the run, or the machine's other work took more than a "
        "tenth of the CPU time that the run's threads could use; null: nobody watched, as on a "
        "shared GPU or in the first seconds"
    ),
    "jobs_per_gpu": (
        "the most jobs of its sweep that used the GPU at a time (launcher.jobs_per_gpu); with more "
        "than one, tok_s, mfu and all times are those of a shared GPU, not the model's own; null "
        "on a CPU"
    ),
    "path": "what computed a packaged baseline (mamba2, fla-gdn); null for other cells",
    "graph": "forward and backward pass were replayed as a CUDA graph, not launched one by one",
    "matrix_precision": (
        "precision of Muon's products, which make the update of a matrix orthogonal; null for the "
        "other optimizers"
    ),
    "parallel": (
        "how the work was shared: ranks and hosts, how the model was sharded, whether the bits are "
        "those of any number of ranks, and in how many virtual shards; tok_s counts all ranks, "
        "peak_memory_bytes is that of the rank with most, mfu that of one device"
    ),
    "slow_path": "it ran as plain PyTorch: without its package, or its cell has no kernel there",
}

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

    def seconds(self) -> float:
        """Return the training time so far."""
        if self._started is None:
            return self._before
        now = self._paused_at if self._paused_at is not None else time.perf_counter()
        return self._before + now - self._started

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
