"""Which plots a report has, each with its definition and its numbers as a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from elman.base.exit_status import RunStatus
from elman.evaluation.metrics import LOSS_WINDOW
from elman.report.comparison.axes import Axis, axis
from elman.report.comparison.blocks import Table, table
from elman.report.comparison.columns import LOSS, TOK_S, VAL_BPB, speed_head
from elman.report.comparison.component_plots import component_plots
from elman.report.comparison.conditions import run_marks
from elman.report.comparison.deciding import (
    AXES,
    KIND_OF,
    LOSS_HEIGHT,
    LOSS_SHARE,
    UNEQUAL_STEPS,
    Height,
    efforts_at,
    mean_of_last_share,
)
from elman.report.comparison.draw import Plot, draw_tasks
from elman.report.comparison.ink import Drawing
from elman.report.comparison.ladder_plots import LadderPictures, ladder_pictures
from elman.report.comparison.pictures import Curve, Lines, Point, Scatter
from elman.report.comparison.report_data import Report
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import Run
from elman.report.comparison.statistics import Spread
from elman.report.comparison.swept import swept_plots
from elman.report.comparison.tasks import Tasks, style_of_model
from elman.report.comparison.tuned_plots import TunedPictures, tuned_pictures
from elman.report.metrics_file import Floats, Metrics
from elman.sections.budget import BudgetKind

RATE_WINDOWS = 10
SMOOTHING = (
    f"Each point is the mean over the {LOSS_WINDOW} optimizer steps up to it. Before step "
    f"{2 * LOSS_WINDOW} it is the mean over the last half of the steps so far, so that the start "
    f"of training leaves the mean step by step. From {2 * LOSS_WINDOW} steps on a curve ends in "
    "the loss of the table."
)
SHARE_SMOOTHING = (
    f"Each point is the mean over the last {LOSS_SHARE:.0%} of the minutes up to it. 100 steps "
    "would be a larger share of a run of slower steps. Its curve would lie higher, though its "
    "loss is as low at every moment."
)
RATE_SMOOTHING = (
    f"Each point is predicted bytes per second of training time over the {RATE_WINDOWS} records "
    "(log.every steps each) up to it, without validation and checkpoints."
)
THINNING = (
    "A curve is drawn in short stretches. Of each, the first, the last, the lowest and the highest "
    "point are drawn, so no extreme is left out."
)
BANDS = (
    "A row with several seeds is the line of their mean, up to the end of the shortest run. The "
    "band goes from the lowest to the highest of them."
)
GRID = (
    "One cell for each model and task, one dot for each seed: its accuracy at the trained length, "
    "from 0 on the left to 1 on the right; the stroke is chance, the best blind guess."
)
"""What the grid of tasks shows."""
_CURVE = (
    "Share of right answers on rows of each tested length, by the weights at the end of training. "
    "The dashed line is chance: the best blind guess on rows of that length."
)
_RIGHT = Axis("share of right answers", 0.0, 1.04)
# The start of training lies far above the rest and would flatten it. So the axis ends at the height
# of the curves after this share of their run.
_START = 0.2
_MOST_LINES = 60
_SHARES = (0.25, 0.5, 0.75, 1.0)
_MOST_STRETCHES, _STRETCHES_OF_ALL = 250, 6000


def make_plots(rows: Sequence[Row], height: Height = LOSS_HEIGHT) -> list[Plot]:
    """Return every plot that has something to show, what was swept first.

    Args:
        rows: The rows of the report.
        height: The number that decides who wins: rows are ordered by it.
    """
    curves = make_curves(rows)
    plots = swept_plots(rows, height)
    plots += [_loss_plot(rows, KIND_OF[name], each) for name, each in curves.losses.items() if each]
    if any(curve.x.size for curve in curves.validations):
        plots.append(_validation_plot(rows, curves.validations))
    if curves.rates:
        plots.append(_rate_plot(rows, curves.rates))
    pairs = enumerate(rows)
    points = [point for number, row in pairs if (point := _point(number, row, height))]
    if points:
        plots.append(_pareto(rows, points, height))
    return plots


@dataclass(frozen=True)
class Curves:
    """The complete curves of all runs: loss over each of :data:`AXES`, rate, validation."""

    losses: Mapping[str, tuple[Curve, ...]]
    rates: tuple[Curve, ...]
    validations: tuple[Curve, ...]


def make_curves(rows: Sequence[Row]) -> Curves:
    """Return the curves of every run that recorded steps."""
    curves: list[list[Curve]] = [[] for _ in (*AXES, "rates", "validations")]
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
                    curves[place].append(curve)
    *losses, rates, validations = map(tuple, curves)
    return Curves(dict(zip(AXES, losses, strict=True)), rates, validations)


def _measured(run: Run, metrics: Metrics) -> list[tuple[Floats, Floats]]:
    """Return positions and values of each of a run's curves, in the order of :class:`Curves`."""
    smooth, efforts = running_mean(metrics.losses), efforts_at(run, metrics.steps)
    measured = [
        (x, mean_of_last_share(x, metrics.losses) if axis in UNEQUAL_STEPS else smooth)
        for axis, x in efforts.items()
        if axis in AXES
    ]
    measured.append(_rates(metrics, run.grad_accum))
    return [*measured, (metrics.validation_steps, metrics.validation_bpb)]


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


def over_seeds(curves: Sequence[Curve]) -> list[Curve]:
    """Return one curve for the seeds of each row, with its range, and the other curves as they are.

    The mean goes from where the last of its runs begins to where the first of them ends.
    """
    by_row: dict[int, list[Curve]] = {}
    for curve in curves:
        if curve.counts:
            by_row.setdefault(curve.row, []).append(curve)
    merged = []
    for curve in curves:
        group = by_row.get(curve.row, [])
        if not curve.counts or len(group) == 1:
            merged.append(curve)
        elif curve is group[0]:
            mean = _mean_of(group)
            merged += group if mean is None else [mean]
    return merged


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


def stretches(curves: Sequence[Curve]) -> int:
    """Return the number of stretches into which each curve of a plot is divided."""
    return min(_MOST_STRETCHES, max(20, _STRETCHES_OF_ALL // max(1, len(curves))))


def _loss_plot(rows: Sequence[Row], kind: BudgetKind, curves: Sequence[Curve]) -> Plot:
    name = kind.axis
    title = f"Loss over {name}{_of_winners(rows)}"
    tops = [float(curve.y[int(_START * curve.y.size) :].max()) for curve in curves if curve.ok]
    tops = tops or [float(curve.y.max()) for curve in curves]
    lows = [float(curve.y.min()) for curve in curves]
    y = axis("loss, nats per byte", [*tops, *lows])
    x = axis(kind.label, [float(curve.x[-1]) for curve in curves], from_zero=True)
    drawn = over_seeds(curves)
    bands = any(curve.band for curve in drawn)
    text = f"{SMOOTHING} {BANDS} {THINNING}" if bands else f"{SMOOTHING} {THINNING}"
    caption = text if name == "steps" else "Drawn like the loss over steps."
    caption = text.replace(SMOOTHING, SHARE_SMOOTHING) if name in UNEQUAL_STEPS else caption
    if any(float(curve.y.max()) > y.high for curve in curves):
        caption += f" Above {y.high:.3g} curves are cut off: the start of training, or divergence."
    picture = Lines(f"loss-{name}", title, _thin(drawn), x, y)
    return Plot(picture, caption, _at_equal(rows, name, curves))


def _of_winners(rows: Sequence[Row]) -> str:
    """Say that rows are runs of settings that a search chose, if all of them are."""
    chosen = [run.tuning is not None for row in rows for run in row.runs]
    return ": each arm at its best setting" if chosen and all(chosen) else ""


def _thin(curves: Sequence[Curve]) -> list[Curve]:
    return [curve.thinned(stretches(curves)) for curve in curves]


def _validation_plot(rows: Sequence[Row], curves: Sequence[Curve]) -> Plot:
    drawn = over_seeds(curves)
    tops = [float(curve.y[curve.y.size // 5 :].max()) for curve in curves]
    y = axis("held-out bits per byte", [*tops, *(float(curve.y.min()) for curve in curves)])
    x = axis("optimizer steps", [float(curve.x[-1]) for curve in curves], from_zero=True)
    lines = []
    for number, row in enumerate(rows):
        own = [curve.y for curve in curves if curve.row == number and curve.counts]
        best = fmean(float(values.min()) for values in own) if own else None
        count = f"{sum(values.size for values in own):,}" if own else NONE
        lines.append((row.label, VAL_BPB.mean(row), VAL_BPB.shown(best), count))
    picture = Lines("validation", "Validation over steps", _thin(drawn), x, y, dotted=True)
    caption = f"Each dot is one validation: {VAL_BPB.definition}. It is not smoothed."
    caption += f" {BANDS}" if any(curve.band for curve in drawn) else ""
    if any(float(curve.y.max()) > y.high for curve in curves):
        caption += f" Above {y.high:.3g} curves are cut off."
    heads = ("val bpb", "of the table", "lowest, mean over seeds", "validations")
    return Plot(picture, caption, table(heads, lines))


def _at_equal(rows: Sequence[Row], name: str, curves: Sequence[Curve]) -> Table:
    """Return the loss of each row at equal effort, up to the end of the shortest run that is ok."""
    good = [curve for curve in curves if curve.ok]
    shortest = min((float(curve.x[-1]) for curve in good), default=0.0)
    marks = [share * shortest for share in _SHARES] if good else []
    form = ".3g" if name in UNEQUAL_STEPS else ",.0f"
    lines = []
    for number, row in enumerate(rows):
        own = [curve for curve in good if curve.row == number]
        values = [LOSS.shown(fmean(c.at(mark) for c in own)) if own else NONE for mark in marks]
        lines.append((row.label, *values))
    return table([f"loss at equal {name}", *(f"{mark:{form}} {name}" for mark in marks)], lines)


def _rate_plot(rows: Sequence[Row], curves: Sequence[Curve]) -> Plot:
    title = "Throughput over minutes"
    x = axis("minutes of training", [float(c.x[-1]) for c in curves], from_zero=True)
    y = axis("predicted bytes per second", [float(c.y.max()) for c in curves], from_zero=True)
    drawn = over_seeds(curves)
    lines = []
    for number, row in enumerate(rows):
        own = [curve.y for curve in curves if curve.row == number]
        ends = (min(map(min, own)), max(map(max, own))) if own else (None, None)
        lines.append((row.label, TOK_S.mean(row), *map(TOK_S.shown, ends)))
    heads = (speed_head(rows), "of the table", "lowest point", "highest point")
    picture = Lines("throughput", title, _thin(drawn), x, y)
    text = f"{RATE_SMOOTHING} {BANDS}" if any(c.band for c in drawn) else RATE_SMOOTHING
    return Plot(picture, f"{text} {THINNING}", table(heads, lines))


def _point(number: int, row: Row, height: Height) -> Point | None:
    rate, loss = row.over_runs(TOK_S.of), height.over(row)
    if rate is None or loss is None:
        return None
    return Point(
        number,
        row.label,
        rate.mean,
        loss.mean,
        _bar(rate),
        _bar(loss),
        loss.sd is not None,
        tuple(row.marks),
        row.style,
    )


def _bar(numbers: Spread) -> tuple[float, float]:
    """Return the mean less and plus one standard deviation, or the mean twice."""
    sd = numbers.sd or 0.0
    return numbers.mean - sd, numbers.mean + sd


def _pareto(rows: Sequence[Row], points: Sequence[Point], height: Height) -> Plot:
    title = f"{height.title} against throughput"
    fronts = []
    for number in dict.fromkeys(rows[point.row].set for point in points):
        fronts.append(pareto_front([p for p in points if rows[p.row].set == number]))
    on_front = {point.row for front in fronts for point in front}
    x = axis(speed_head(rows), [value for p in points for value in p.x_range])
    y = axis(height.label, [value for p in points for value in p.y_range])
    lines = tuple(
        (p.full_name, TOK_S.shown(p.x), height.shown(p.y), _on_front(p, on_front, points, rows))
        for p in points
    )
    caption = (
        "Dots are means over seeds, bars one standard deviation each way; a hollow dot is a single "
        "seed, whose noise is unknown. A dashed square and a star mark runs that used a slow path, "
        "shared their GPU, were resumed, or are otherwise marked in the table. "
        "The line is the Pareto front of each set of comparable rows: no row of the set is both "
        "faster and better than a row on it. With more than twelve rows, only those on a front "
        "show their names; on the page the others show theirs if one points at them."
    )
    heads = ("row", x.label, height.name, "on the front")
    picture = Scatter("pareto", title, points, fronts, x, y, height.name)
    return Plot(picture, caption, table(heads, lines))


def _on_front(
    point: Point, on_front: Collection[int], points: Sequence[Point], rows: Sequence[Row]
) -> str:
    """Return whether a row is on the front of its set, or could be there within its own noise."""
    if point.row in on_front:
        return "yes"
    low, _ = point.y_range
    own = [p for p in points if rows[p.row].set == rows[point.row].set and p is not point]
    beaten = any(p.x >= point.x and p.y <= low for p in own)
    return "no" if beaten or not point.known else "not by its mean, within one deviation"


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both speed and loss, slowest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.x, p.y)):
        if not front or point.y < front[-1].y:
            front.append(point)
    return front[::-1]


def length_plots(tasks: Tasks) -> list[Plot]:
    """Return a plot of accuracy by length for each task that was tested."""
    return [_length_plot(tasks, task) for task in tasks.names if _length_curves(tasks, task)]


def _length_plot(tasks: Tasks, task: str) -> Plot:
    curves = _length_curves(tasks, task)
    drawn = over_seeds(curves)
    x = axis("positions of a row", [float(c.x[-1]) for c in curves], from_zero=True)
    title, floor = f"Accuracy by length: {task}", tuple(sorted(tasks.chances(task).items()))
    picture = Lines(f"task-{_task_name(task)}", title, drawn, x, _RIGHT, dotted=True, floor=floor)
    caption = _CURVE + (f" {BANDS}" if any(curve.band for curve in drawn) else "")
    return Plot(picture, caption, tasks.by_length(task))


def _length_curves(tasks: Tasks, task: str) -> list[Curve]:
    curves = []
    for cell in (cell for cell in tasks.cells if cell.task == task):
        for run, accuracies in zip(cell.row.counted, cell.by_length, strict=True):
            if accuracies:
                lengths = sorted(accuracies)
                x = np.array(lengths, dtype=np.float64)
                y = np.array([accuracies[length] for length in lengths])
                name = cell.model + (f", seed {run.seed}" if len(cell.row.runs) > 1 else "")
                curve = Curve(cell.number, name, True, x, y, run_marks(run), counts=True)
                curves.append(replace(curve, style=style_of_model(tasks, cell.model)))
    return curves


def _task_name(task: str) -> str:
    """Return a task's name as part of an SVG's id."""
    return "".join(sign if sign.isalnum() else "-" for sign in task)


@dataclass(frozen=True)
class PagePictures:
    """The plots of a report.

    Args:
        grid: The grid of models and tasks; None if no run learned a task.
        swept: What was swept.
        tasks: Accuracy by length of each task.
        curves: Everything else.
        tuned: The trials of each tuned sweep.
        components: The gain of each component of a suite.
        ladders: The laws and rates of each ladder.
    """

    grid: Drawing | None
    swept: tuple[Plot, ...]
    tasks: tuple[Plot, ...]
    curves: tuple[Plot, ...]
    tuned: tuple[TunedPictures, ...] = ()
    components: tuple[Plot, ...] = ()
    ladders: tuple[LadderPictures, ...] = ()

    @property
    def all(self) -> tuple[Plot, ...]:
        """Every plot, in the order of the page."""
        trials = (plot for one in self.tuned for plot in (*one.plots, *one.parallel))
        laws = (plot for one in self.ladders for plot in one.plots)
        return (*self.tasks, *self.swept, *laws, *self.components, *trials, *self.curves)


def page_pictures(report: Report) -> PagePictures:
    """Return the plots of a report: of its page, and of its paper."""
    plots = make_plots(report.rows, report.height)
    # A loss of one task says nothing beside that of another.
    several = len(report.tasks.names) > 1
    swept = tuple(plot for plot in plots if plot.shows_keys and not several)
    curves = tuple(plot for plot in plots if not plot.shows_keys)
    grid = draw_tasks(report.tasks) if report.tasks.cells else None
    tuned = tuned_pictures(report.tuned, report.rows)
    gains = tuple(component_plots(report.components))
    lengths = tuple(length_plots(report.tasks))
    ladders = tuple(ladder_pictures(report.ladders, report.rows))
    return PagePictures(grid, swept, lengths, curves, tuple(tuned), gains, ladders)
