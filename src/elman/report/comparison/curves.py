"""The curves of the plots: smoothed, and thinned to as many points as one can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elman.base.errors import RunStatus
from elman.evaluation.metrics import LOSS_WINDOW
from elman.report.comparison.rows import Row, run_marks
from elman.report.comparison.runs import Run
from elman.report.metrics_file import Floats, Metrics

RATE_WINDOWS = 10
SMOOTHING = (
    f"Each point is the mean over the {LOSS_WINDOW} optimizer steps up to it; before step "
    f"{2 * LOSS_WINDOW}, over the last half of the steps so far, so that the start of training "
    f"leaves the mean step by step. From {2 * LOSS_WINDOW} steps on a curve ends in the loss of "
    "the table."
)
LOSS_SHARE = 0.1
"""Share of the minutes or FLOPs so far over which a loss at equal minutes or FLOPs is the mean."""
SHARE_SMOOTHING = (
    f"Each point is the mean over the last {LOSS_SHARE:.0%} of the minutes up to it: 100 steps "
    "would be a larger share of a run of slower steps, and its curve would lie higher though its "
    "loss is as low at every moment."
)
RATE_SMOOTHING = (
    f"Each point is predicted bytes per second of training time over the {RATE_WINDOWS} records "
    "(log.every steps each) up to it, without validation and checkpoints."
)
THINNING = (
    "Of the points that share a stretch of a curve, the first, the last, the lowest and the "
    "highest are drawn: no extreme is left out."
)
BANDS = (
    "A row with several seeds is the line of their mean, up to the end of the shortest run; the "
    "band goes from the lowest to the highest of them."
)
_MOST_STRETCHES, _STRETCHES_OF_ALL = 250, 6000


@dataclass(frozen=True)
class Curve:
    """One run in one plot, or the mean over the seeds of a row with its range.

    Args:
        row: Number of its row in the table, from 0.
        name: What it is called.
        ok: Whether the run ended well; otherwise the curve ends in a cross.
        x: Positions, ascending.
        y: A value for each position.
        marks: What a reader must know about how it was computed.
        counts: Whether the run is one of those in the means of its row.
        band: Of a mean, the lowest and the highest value at each position.
        style: The line style of its row.
    """

    row: int
    name: str
    ok: bool
    x: Floats
    y: Floats
    marks: tuple[str, ...] = ()
    counts: bool = False
    band: tuple[Floats, Floats] | None = None
    style: int = 0

    @property
    def told(self) -> str:
        """Its name with its marks."""
        return f"{self.name} ({', '.join(self.marks)})" if self.marks else self.name

    def thinned(self, stretches: int) -> Curve:
        """Return the curve with the first, last, lowest and highest point of each stretch."""
        if self.x.size <= 2 * stretches:
            return self
        edges = np.linspace(0, self.x.size, stretches + 1).astype(int)
        lows, highs = self.band or (self.y, self.y)
        kept: set[int] = set()
        for first, end in pairwise(edges.tolist()):
            kept |= {first, end - 1}
            kept |= {first + int(lows[first:end].argmin()), first + int(highs[first:end].argmax())}
        chosen = sorted(kept)
        band = self.band and (lows[chosen], highs[chosen])
        return replace(self, x=self.x[chosen], y=self.y[chosen], band=band)

    def at(self, x: float) -> float:
        """Return the value at ``x``, linear between the points."""
        return float(np.interp(x, self.x, self.y))


@dataclass(frozen=True)
class Curves:
    """The complete curves of all runs: loss by three measures of effort, rate, validation."""

    over_steps: tuple[Curve, ...]
    over_minutes: tuple[Curve, ...]
    over_bytes: tuple[Curve, ...]
    rates: tuple[Curve, ...]
    validations: tuple[Curve, ...]


def stretches(curves: Sequence[Curve]) -> int:
    """Return the number of stretches into which each curve of a plot is divided."""
    return min(_MOST_STRETCHES, max(20, _STRETCHES_OF_ALL // max(1, len(curves))))


def make_curves(rows: Sequence[Row]) -> Curves:
    """Return the curves of every run that recorded steps."""
    found: tuple[list[Curve], ...] = ([], [], [], [], [])
    for number, row in enumerate(rows):
        counted = {id(run) for run in row.counted}
        for run in row.runs:
            if run.metrics is None or not run.metrics.steps.size:
                continue
            name = row.label if len(row.runs) == 1 else f"{row.label}, seed {run.seed}"
            counts, ends = id(run) in counted, run.status == RunStatus.OK
            marks = (*run_marks(run), *(row.unequal_mark if counts else ()))
            for place, (x, y) in enumerate(_measured(run, run.metrics)):
                if x.size:
                    curve = Curve(number, name, ends, x, y, marks, counts, style=row.style)
                    found[place].append(curve)
    return Curves(*map(tuple, found))


def _measured(run: Run, metrics: Metrics) -> list[tuple[Floats, Floats]]:
    """Return positions and values of each of a run's curves, in the order of :class:`Curves`."""
    smooth, accumulated = running_mean(metrics.losses), grad_accum(run)
    minutes = metrics.seconds_at(metrics.steps) / 60
    sizes = metrics.bytes_at(metrics.steps, accumulated)
    shared = mean_of_last_share(minutes, metrics.losses)
    found = [(metrics.steps, smooth), (minutes, shared), (sizes, smooth)]
    found.append(_rates(metrics, accumulated))
    return [*found, (metrics.validation_steps, metrics.validation_bpb)]


def over_seeds(curves: Sequence[Curve]) -> list[Curve]:
    """Return one curve for the seeds of each row, with its range, and the other curves as they are.

    The mean goes from where the last of its runs begins to where the first of them ends.
    """
    by_row: dict[int, list[Curve]] = {}
    for curve in curves:
        if curve.counts:
            by_row.setdefault(curve.row, []).append(curve)
    found = []
    for curve in curves:
        group = by_row.get(curve.row, [])
        if not curve.counts or len(group) == 1:
            found.append(curve)
        elif curve is group[0]:
            mean = _mean_of(group)
            found += group if mean is None else [mean]
    return found


def _mean_of(group: Sequence[Curve]) -> Curve | None:
    """Return the mean of some runs with its range; None if they share no stretch."""
    first, last = max(float(c.x[0]) for c in group), min(float(c.x[-1]) for c in group)
    if first > last:
        return None
    # The lines between points are straight: the extremes of a mean lie at points of its runs.
    places = np.unique(np.concatenate([curve.x for curve in group]))
    places = places[(places >= first) & (places <= last)]
    values = np.stack([np.interp(places, curve.x, curve.y) for curve in group])
    marks = tuple(dict.fromkeys(mark for curve in group for mark in curve.marks))
    name = f"{group[0].name.rpartition(', seed ')[0]}, mean of {len(group)} seeds"
    band = (values.min(axis=0), values.max(axis=0))
    row, style, mean = group[0].row, group[0].style, values.mean(axis=0)
    return Curve(row, name, True, places, mean, marks, True, band, style)


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


def mean_of_last_share(efforts: Floats, losses: Floats) -> Floats:
    """Return at each effort the mean of a curve over the last tenth of the effort so far.

    The curve is straight between its points and level before the first, so that the mean does not
    depend on how many points it has.

    Args:
        efforts: Where the points are, ascending, at least one.
        losses: How high they are.
    """
    x, y = np.concatenate([[0.0], efforts]), np.concatenate([losses[:1], losses])
    below = np.concatenate([[0.0], np.cumsum(np.diff(x) * (y[1:] + y[:-1]) / 2)])
    starts = (1 - LOSS_SHARE) * efforts
    place = np.searchsorted(x, starts, side="right") - 1
    before = below[place] + (starts - x[place]) * (y[place] + np.interp(starts, x, y)) / 2
    spans = LOSS_SHARE * efforts
    mean: Floats = np.divide(below[1:] - before, spans, out=losses.copy(), where=spans > 0)
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
