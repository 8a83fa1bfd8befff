"""The curves of the plots: smoothed, and thinned to as many points as one can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from elman.base.errors import RunStatus
from elman.evaluation.metrics import LOSS_WINDOW
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run
from elman.report.metrics_file import Floats, Metrics

RATE_WINDOWS = 10
SMOOTHING = (
    f"Each point is the mean over the {LOSS_WINDOW} optimizer steps up to it; before step "
    f"{2 * LOSS_WINDOW}, over the last half of the steps so far, so that the start of training "
    f"leaves the mean step by step. From {2 * LOSS_WINDOW} steps on a curve ends in the loss of "
    "the table."
)
RATE_SMOOTHING = (
    f"Each point is predicted bytes per second of training time over the {RATE_WINDOWS} records "
    "(log.every steps each) up to it, without validation and checkpoints."
)
THINNING = (
    "Of the points that share a stretch of a curve, the first, the last, the lowest and the "
    "highest are drawn: no extreme is left out."
)
_MOST_STRETCHES, _STRETCHES_OF_ALL = 250, 6000


@dataclass(frozen=True)
class Curve:
    """One run in one plot.

    Args:
        row: Number of its row in the table, from 0.
        name: What it is called.
        ok: Whether the run ended well; otherwise the curve ends in a cross.
        x: Positions, ascending.
        y: A value for each position.
    """

    row: int
    name: str
    ok: bool
    x: Floats
    y: Floats

    def thinned(self, stretches: int) -> Curve:
        """Return the curve with the first, last, lowest and highest point of each stretch."""
        if self.x.size <= 2 * stretches:
            return self
        edges = np.linspace(0, self.x.size, stretches + 1).astype(int)
        kept: set[int] = set()
        for first, end in pairwise(edges.tolist()):
            part = self.y[first:end]
            kept |= {first, end - 1, first + int(part.argmin()), first + int(part.argmax())}
        chosen = sorted(kept)
        return Curve(self.row, self.name, self.ok, self.x[chosen], self.y[chosen])

    def at(self, x: float) -> float:
        """Return the value at ``x``, linear between the points."""
        return float(np.interp(x, self.x, self.y))


@dataclass(frozen=True)
class Curves:
    """The complete curves of all runs: loss by three measures of effort, and rate over time."""

    over_steps: tuple[Curve, ...]
    over_minutes: tuple[Curve, ...]
    over_bytes: tuple[Curve, ...]
    rates: tuple[Curve, ...]


def stretches(curves: Sequence[Curve]) -> int:
    """Return the number of stretches into which each curve of a plot is divided."""
    return min(_MOST_STRETCHES, max(60, _STRETCHES_OF_ALL // max(1, len(curves))))


def make_curves(rows: Sequence[Row]) -> Curves:
    """Return the curves of every run that recorded steps."""
    found: tuple[list[Curve], ...] = ([], [], [], [])
    for number, row in enumerate(rows):
        for run in row.runs:
            if run.metrics is None or not run.metrics.steps.size:
                continue
            name = row.label if len(row.runs) == 1 else f"{row.label}, seed {run.seed}"
            ok, metrics = run.status == RunStatus.OK, run.metrics
            smooth, accumulated = running_mean(metrics.losses), grad_accum(run)
            minutes = metrics.seconds_at(metrics.steps) / 60
            sizes = metrics.bytes_at(metrics.steps, accumulated)
            for place, x in enumerate((metrics.steps, minutes, sizes)):
                found[place].append(Curve(number, name, ok, x, smooth))
            x, rate = _rates(metrics, accumulated)
            if x.size:
                found[3].append(Curve(number, name, ok, x, rate))
    return Curves(*map(tuple, found))


def running_mean(values: Floats) -> Floats:
    """Return at each value the mean of the last ``LOSS_WINDOW``, or the last half if that is less.

    A window that first fills up and then moves would drop the high losses of the first steps all
    at once, a hundred steps later. The curve would have a kink that the training does not have.
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, values.size + 1)
    starts = ends - np.minimum(LOSS_WINDOW, (ends + 1) // 2)
    mean: Floats = (total[ends] - total[starts]) / (ends - starts)
    return mean


def _rates(metrics: Metrics, grad_accum: int) -> tuple[Floats, Floats]:
    """Return minutes and bytes per second, without the first window: it includes the start-up."""
    steps, seconds = metrics.window_steps, metrics.window_seconds
    sizes = metrics.bytes_at(steps, grad_accum)
    ends = np.arange(1, steps.size)
    starts = np.maximum(0, ends - RATE_WINDOWS)
    spent = seconds[ends] - seconds[starts]
    good = spent > 0
    ends, starts, spent = ends[good], starts[good], spent[good]
    return seconds[ends] / 60, (sizes[ends] - sizes[starts]) / spent


def grad_accum(run: Run) -> int:
    value = run.config["train"].get("grad_accum", 1) if run.config else 1
    return value if isinstance(value, int) else 1
