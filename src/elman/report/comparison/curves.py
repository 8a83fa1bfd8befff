"""Curves of runs: for the plots, and the losses at an effort, by each kind of budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elman.base.exit_status import RunStatus
from elman.evaluation.metrics import LOSS_WINDOW
from elman.evaluation.result import RunResult
from elman.report.comparison.conditions import run_marks
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run
from elman.report.metrics_file import Floats, Metrics
from elman.sections.budget import KINDS, BudgetKind, limits

RATE_WINDOWS = 10
SMOOTHING = (
    f"Each point is the mean over the {LOSS_WINDOW} optimizer steps up to it; before step "
    f"{2 * LOSS_WINDOW}, over the last half of the steps so far, so that the start of training "
    f"leaves the mean step by step. From {2 * LOSS_WINDOW} steps on a curve ends in the loss of "
    "the table."
)
LOSS_SHARE = 0.1
"""Share of what :data:`UNEQUAL_STEPS` name so far over which a loss at equal parts is the mean."""
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
Axis = str
"""At equal what losses are compared: ``axis`` of a kind of budget."""
KIND_OF: dict[Axis, BudgetKind] = {
    kind.axis: kind for kind in sorted(KINDS, key=lambda kind: kind.key != "steps")
}
"""The kinds of budgets by axis, in the order in which reports compare at them."""
AXES: tuple[Axis, ...] = tuple(axis for axis, kind in KIND_OF.items() if kind.rate is None)
"""The axes of every comparison; runs with another budget are compared at equal parts of it, too."""
UNEQUAL_STEPS: tuple[Axis, ...] = tuple(k.axis for k in KIND_OF.values() if not k.equal_steps)
"""Models that are given equally much of these take different numbers of steps."""
EQUAL_STEPS: tuple[Axis, ...] = tuple(axis for axis in KIND_OF if axis not in UNEQUAL_STEPS)
NEAR = 0.02
"""Efforts that differ by less count as equal where there is no curve between them. A run of which
less is left counts as ended: with 2 % left a cosine is within 0.1 % of its range from its end."""
_SAME = 1e-6
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
    """The complete curves of all runs: loss over each of :data:`AXES`, rate, validation."""

    losses: Mapping[Axis, tuple[Curve, ...]]
    rates: tuple[Curve, ...]
    validations: tuple[Curve, ...]


def stretches(curves: Sequence[Curve]) -> int:
    """Return the number of stretches into which each curve of a plot is divided."""
    return min(_MOST_STRETCHES, max(20, _STRETCHES_OF_ALL // max(1, len(curves))))


def make_curves(rows: Sequence[Row]) -> Curves:
    """Return the curves of every run that recorded steps."""
    found: list[list[Curve]] = [[] for _ in (*AXES, "rates", "validations")]
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
    *losses, rates, validations = map(tuple, found)
    return Curves(dict(zip(AXES, losses, strict=True)), rates, validations)


def _measured(run: Run, metrics: Metrics) -> list[tuple[Floats, Floats]]:
    """Return positions and values of each of a run's curves, in the order of :class:`Curves`."""
    smooth, efforts = running_mean(metrics.losses), _efforts(run, metrics.steps)
    found = [
        (x, mean_of_last_share(x, metrics.losses) if axis in UNEQUAL_STEPS else smooth)
        for axis, x in efforts.items()
        if axis in AXES
    ]
    found.append(_rates(metrics, grad_accum(run)))
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


@dataclass(frozen=True)
class Reading:
    """One loss of a run along its training.

    Args:
        x: Efforts at which it was recorded, by axis, ascending.
        y: What was recorded there, by axis.
        end: The effort of the whole run, by axis; an axis may be unknown.
        final: The loss at the end, by axis.
    """

    x: dict[Axis, Floats]
    y: dict[Axis, Floats]
    end: dict[Axis, float]
    final: dict[Axis, float | None]

    def at(self, axis: Axis, effort: float) -> float | None:
        """Return the loss at an effort, linear between two records; None if nothing is near."""
        end, final = self.end.get(axis), self.final[axis]
        if end is not None and final is not None and abs(end - effort) <= _SAME * effort:
            return final
        x, y = self.x[axis], self.y[axis]
        if x.size and x[0] <= effort <= x[-1]:
            return float(np.interp(effort, x, y))
        near = [(abs(x[place] - effort), y[place]) for place in (0, -1) if x.size]
        if end is not None and final is not None:
            near.append((abs(end - effort), final))
        distance, value = min(near, default=(np.inf, None))
        return float(value) if value is not None and distance <= NEAR * effort else None


def training_loss(run: Run) -> Reading:
    """Return the loss on trained bytes along a run: a mean over the steps before each point.

    At equal steps and bytes it is that over the last 100 steps, as in the table. At equal minutes
    and FLOPs it is that over the last tenth of them: 100 steps would be a larger share of a run
    of slower steps, and so its mean would be higher though its loss is as low at every moment.
    """
    metrics, result = run.metrics, run.result
    steps = metrics.steps if metrics is not None else np.empty(0)
    losses = metrics.losses if metrics is not None else np.empty(0)
    x, means = _efforts(run, steps), _trailing_mean(losses)
    y = dict.fromkeys(x, means)
    final: dict[Axis, float | None] = dict.fromkeys(x, result.loss if result else None)
    for axis in UNEQUAL_STEPS:
        if x[axis].size:
            y[axis] = mean_of_last_share(x[axis], losses)
        final[axis] = float(y[axis][-1]) if x[axis].size else None
    return Reading(x, y, ends(run), final)


def held_out_loss(run: Run) -> Reading:
    """Return ``val_bpb`` along a run, at its validations."""
    metrics, result = run.metrics, run.result
    steps = metrics.validation_steps if metrics is not None else np.empty(0)
    losses = metrics.validation_bpb if metrics is not None else np.empty(0)
    x = _efforts(run, steps)
    final: dict[Axis, float | None] = dict.fromkeys(x, result.val_bpb if result else None)
    return Reading(x, dict.fromkeys(x, losses), ends(run), final)


def spent(run: Run, axis: Axis) -> bool:
    """Whether a run took all that its budget gave it of an axis; False if it had no such budget."""
    train = (run.config or {}).get("train") or {}
    budget = limits(train).get(KIND_OF[axis].key)
    end = ends(run).get(axis)
    return isinstance(budget, int | float) and end is not None and end >= budget * (1 - _SAME)


def goes_on(run: Run, axis: Axis, effort: float) -> bool:
    """Whether much of a run comes after an effort: more than 2 % of it, and more than one step."""
    known = ends(run)
    end, steps = known.get(axis, 0.0), known.get("steps")
    return end - effort > max(NEAR * end, end / steps if steps else 0.0)


def ends(run: Run) -> dict[Axis, float]:
    """Return the effort of a whole run by axis, without those that are unknown."""
    result = run.result
    if result is None:
        return {}
    sizes = {"steps": result.steps, "seconds": result.seconds.train, "bytes": result.tokens}
    known = {axis: _end(kind, result, sizes) for axis, kind in KIND_OF.items()}
    return {axis: float(value) for axis, value in known.items() if value}


def _end(kind: BudgetKind, result: RunResult, sizes: Mapping[str, float | None]) -> float | None:
    """Return how much of a kind a whole run took; None if it is unknown."""
    if kind.rate is None:
        amount = sizes[kind.of]
        return None if amount is None else amount / kind.size
    own: float | None = getattr(result, kind.key, None)  # known without such a budget, too
    return result.budget.get(kind.key, {}).get("spent") if own is None else own


def _efforts(run: Run, steps: Floats) -> dict[Axis, Floats]:
    """Return how much of each kind a run had taken at some steps; nothing of what is unknown."""
    if run.metrics is None:
        return dict.fromkeys(KIND_OF, np.empty(0))
    sizes = {
        "steps": steps,
        "seconds": run.metrics.seconds_at(steps),
        "bytes": run.metrics.bytes_at(steps, grad_accum(run)),
    }
    return {axis: _effort(kind, run, sizes) for axis, kind in KIND_OF.items()}


def _effort(kind: BudgetKind, run: Run, sizes: Mapping[str, Floats]) -> Floats:
    if kind.rate is None:
        return sizes[kind.of] if kind.size == 1 else sizes[kind.of] / kind.size
    recorded = run.metrics.rates.get(kind.rate.name) if run.metrics is not None else None
    each = getattr(run.result, kind.rate.name, recorded)
    return np.empty(0) if each is None else each * sizes[kind.rate.of]


def _trailing_mean(losses: Floats) -> Floats:
    """Return at each step the mean over the last steps up to it, as ``loss`` is defined."""
    total = np.concatenate([[0.0], np.cumsum(losses)])
    ends_ = np.arange(1, losses.size + 1)
    starts = np.maximum(0, ends_ - LOSS_WINDOW)
    mean: Floats = (total[ends_] - total[starts]) / (ends_ - starts)
    return mean
