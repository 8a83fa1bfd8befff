"""Which pictures a ladder has: scores over size and over compute, and rates over width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elman.report.comparison.axes import axis, log_axis
from elman.report.comparison.blocks import table
from elman.report.comparison.draw import Plot
from elman.report.comparison.ladder import Family, Ladder, Step
from elman.report.comparison.pictures import FamilyCurve, Mark, OverSize
from elman.report.comparison.rows import Row
from elman.tuning.ladder import MILLION
from elman.tuning.power_law import Fit

ABOUT = (
    "Each marker is the mean of a size's seeds, with a bar from the lowest to the highest; the "
    "line is the law through all sizes, the band its interval. A hollow marker is the size that "
    "was held out, a ring with a bar what was predicted of it before it was trained."
)
ABOUT_COMPUTE = "As over size, with the operations of training; the law is fitted anew over them."
ABOUT_RATES = (
    "Filled markers are the best rates of sizes with trials, with a bar over their windows; the "
    "line through them gives the rates of the other widths. A hollow marker is the best of the "
    "trials that check the line."
)
_POINTS = 60
_SCORE = "held-out bits per byte"


@dataclass(frozen=True)
class LadderPictures:
    """The pictures of one ladder.

    Args:
        families: Name, rows of the table, and line style of each family, for a legend.
        plots: The pictures.
    """

    families: tuple[tuple[str, tuple[int, ...], int], ...]
    plots: tuple[Plot, ...]


def ladder_pictures(ladders: Sequence[Ladder], rows: Sequence[Row]) -> list[LadderPictures]:
    """Return the pictures of each ladder of a report.

    Args:
        ladders: The ladders.
        rows: The rows of the report: a family stands for the rows of its sizes.
    """
    return [
        _pictures(one, rows, "ladder" if len(ladders) == 1 else f"ladder-{number}")
        for number, one in enumerate(ladders, 1)
    ]


def _pictures(ladder: Ladder, rows: Sequence[Row], prefix: str) -> LadderPictures:
    legend = []
    for style, family in enumerate(ladder.families):
        models = {step.arm.model for step in family.steps}
        own = tuple(number for number, row in enumerate(rows) if row.model in models)
        legend.append((family.name, own or (len(rows) + style,), style))
    plots = [
        _over_size(ladder, legend, f"{prefix}-size"),
        _over_compute(ladder, legend, f"{prefix}-compute"),
        _rates(ladder, legend, f"{prefix}-rates"),
    ]
    return LadderPictures(tuple(legend), tuple(one for one in plots if one is not None))


Legend = Sequence[tuple[str, tuple[int, ...], int]]


def _over_size(ladder: Ladder, legend: Legend, name: str) -> Plot | None:
    curves = [
        _curve(family, entry, family.law, lambda step: float(step.arm.params or 0), MILLION)
        for family, entry in zip(ladder.families, legend, strict=True)
    ]
    lines = [
        (family.name, step.arm.label, f"{step.arm.params or 0:,}", *_numbers(step))
        for family in ladder.families
        for step in family.steps
    ]
    heads = ("family", "model", "parameters", "mean", "lowest", "highest", "n", "rate")
    title = "Held-out bits per byte over size"
    plot = _plot(name, title, curves, "parameters, in millions", ABOUT)
    return None if plot is None else Plot(plot.picture, plot.caption, table(heads, lines))


def _numbers(step: Step) -> list[str]:
    rate = "-" if step.rate is None else f"{step.rate:.4g}"
    if step.mean is None:
        return ["-", "-", "-", "0", rate]
    scores = step.scores.values()
    ends = [f"{value:.4f}" for value in (step.mean, min(scores), max(scores))]
    return [*ends, str(len(step.scores)), rate]


def _over_compute(ladder: Ladder, legend: Legend, name: str) -> Plot | None:
    curves = [
        _curve(family, entry, family.of_compute, lambda step: step.flops or 0.0, 1.0)
        for family, entry in zip(ladder.families, legend, strict=True)
    ]
    title = "Held-out bits per byte over compute"
    return _plot(name, title, curves, "operations of training", ABOUT_COMPUTE)


def _plot(
    name: str, title: str, curves: Sequence[FamilyCurve], label: str, caption: str
) -> Plot | None:
    """Return scores over a size; None if there is none."""
    marks = [mark for curve in curves for mark in (*curve.marks, *curve.predicted)]
    if not marks:
        return None
    x = log_axis(label, min(one.x for one in marks), max(one.x for one in marks))
    y = axis(_SCORE, [end for one in marks for end in (one.y, *one.ends)])
    return Plot(OverSize(name, title, curves, x, y), caption, None)


def _curve(
    family: Family,
    entry: tuple[str, tuple[int, ...], int],
    law: Fit | None,
    place: Callable[[Step], float],
    unit: float,
) -> FamilyCurve:
    name, rows, style = entry
    marks = [
        _mark(family, step, place(step) / unit)
        for step in family.steps
        if step.scores and place(step) > 0
    ]
    predicted = list(_predicted(family, place, unit))
    xs: list[float] = []
    if law is not None and law.falls:
        ends = [one.x for one in (*marks, *predicted)]
        xs = np.geomspace(min(ends), max(ends), _POINTS).tolist()
    line = [(x, float(law.law.at(x * unit))) for x in xs if law is not None]
    band = [(x, *law.band(x * unit)) for x in xs if law is not None and law.has_noise]
    return FamilyCurve(rows[0], name, style, line, band, marks, predicted)


def _mark(family: Family, step: Step, x: float) -> Mark:
    scores = [*step.scores.values()]
    assert step.mean is not None
    ends = f", {min(scores):.4f} to {max(scores):.4f}" if len(scores) > 1 else ""
    tip = f"{step.arm.label}: {step.mean:.4f}{ends}, n={len(scores)}"
    is_last = step is family.last
    tip += ", held out" if is_last else ""
    return Mark(x, step.mean, (min(scores), max(scores)), tip, hollow=is_last)


def _predicted(family: Family, place: Callable[[Step], float], unit: float) -> Iterator[Mark]:
    """Yield what was predicted of the largest size, where that is known."""
    told, step = family.prediction, family.last
    if told is None or step is None or told.score is None or place(step) <= 0:
        return
    ends = (told.low or told.score, told.high or told.score)
    tip = (
        f"{step.arm.label}: {told.score:.4f} predicted ({ends[0]:.4f} to {ends[1]:.4f}), {told.at}"
    )
    yield Mark(place(step) / unit, told.score, ends, tip)


def _rates(ladder: Ladder, legend: Legend, name: str) -> Plot | None:
    """Return rates over width with each family's line."""
    curves = [
        _rate_curve(family, entry) for family, entry in zip(ladder.families, legend, strict=True)
    ]
    places = [place for curve in curves for place in curve.line]
    places += [(one.x, end) for curve in curves for one in curve.marks for end in one.ends]
    if not places:
        return None
    widths, rates = zip(*places, strict=True)
    x = log_axis("width (model.dim)", min(widths), max(widths))
    ticks = sorted({step.arm.width or 0 for one in ladder.families for step in one.steps})
    x = replace(x, own_ticks=tuple((float(width), str(width)) for width in ticks if width))
    y = log_axis("learning rate (optim.lr)", min(rates), max(rates))
    picture = OverSize(name, "Learning rate over width", curves, x, y, rates=True)
    return Plot(picture, ABOUT_RATES, None)


def _rate_curve(family: Family, entry: tuple[str, tuple[int, ...], int]) -> FamilyCurve:
    name, rows, style = entry
    marks = []
    for step in family.steps:
        if step.is_tuned and step.rate is not None and step.arm.width:
            one = step.window
            ends = (one.low, one.high) if one is not None else (step.rate, step.rate)
            reach = f"window {ends[0]:.4g} to {ends[1]:.4g}"
            tip = f"{step.arm.label}: best rate {step.rate:.4g}, {reach}"
            marks.append(Mark(float(step.arm.width), step.rate, ends, tip))
    check = family.check
    if check is not None and check.step.arm.width:
        tip = f"{check.step.arm.label}: best of the trials {check.rate:.4g}"
        width = float(check.step.arm.width)
        marks.append(Mark(width, check.rate, (check.rate, check.rate), tip, hollow=True))
    line = []
    widths = [step.arm.width for step in family.steps if step.arm.width]
    if family.line is not None and widths:
        ends_of = dict.fromkeys((min(widths), max(widths)))
        line = [(float(width), family.line.rate(width)) for width in ends_of]
    return FamilyCurve(rows[0], name, style, line, [], marks)
