"""What pictures show, before they are drawn: their points and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elman.report.comparison.axes import Axis
from elman.report.metrics_file import Floats

_MOST_VALUES = 24


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
    def full_name(self) -> str:
        """Its name with its marks."""
        return f"{self.name} ({', '.join(self.marks)})" if self.marks else self.name

    def thinned(self, stretches: int) -> Curve:
        """Return the curve with the first, last, lowest and highest point of each stretch."""
        if self.x.size <= 2 * stretches:
            return self
        edges = np.linspace(0, self.x.size, stretches + 1).astype(int)
        lows, highs = self.band or (self.y, self.y)
        shown: set[int] = set()
        for first, end in pairwise(edges.tolist()):
            shown |= {first, end - 1}
            shown |= {first + int(lows[first:end].argmin()), first + int(highs[first:end].argmax())}
        chosen = sorted(shown)
        band = self.band and (lows[chosen], highs[chosen])
        return replace(self, x=self.x[chosen], y=self.y[chosen], band=band)

    def at(self, x: float) -> float:
        """Return the value at ``x``, linear between the points."""
        return float(np.interp(x, self.x, self.y))


@dataclass(frozen=True)
class Point:
    """One row in a scatter plot.

    Args:
        row: Its number in the table.
        name: What it is called.
        x: Its mean.
        y: Its mean.
        x_range: Ends of its bar; both are ``x`` if the noise is unknown.
        y_range: The same for ``y``.
        known: Whether its noise is known; otherwise its dot is hollow.
        marks: The marks of its runs, as in the table.
        style: The line style of its row.
    """

    row: int
    name: str
    x: float
    y: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    known: bool = True
    marks: tuple[str, ...] = ()
    style: int = 0

    @property
    def full_name(self) -> str:
        """Its name with its marks."""
        marks = [*self.marks, *([] if self.known else ["n=1"])]
        return f"{self.name} ({', '.join(marks)})" if marks else self.name


@dataclass(frozen=True)
class Dot:
    """One row in a picture of what was swept.

    Args:
        row: Its number in the table.
        name: What it is called.
        at: The place of its value on the axis of the key; in a heat map, of both keys.
        loss: Its mean over seeds; None if no run counts.
        ends: The lowest and the highest of its seeds.
        n: How many seeds.
        marks: The marks of its runs, as in the table.
        failed: How its other runs ended, as in ``2 nan``; empty if none failed.
        waits: The runs that have not ended, as in ``2 running``.
        best: Whether it is the best of the largest set of comparable rows.
        style: The line style of its row.
        measure: What ``loss`` is: the loss, or val bpb.
    """

    row: int
    name: str
    at: tuple[float, ...]
    loss: float | None
    ends: tuple[float, float] = (0.0, 0.0)
    n: int = 0
    marks: tuple[str, ...] = ()
    failed: str = ""
    waits: str = ""
    best: bool = False
    style: int = 0
    measure: str = "loss"

    @property
    def summary(self) -> str:
        """Everything about it in one line."""
        parts = []
        if self.loss is not None:
            spread = f", {self.ends[0]:.4f} to {self.ends[1]:.4f}" if self.n > 1 else ""
            parts.append(f"{self.measure} {self.loss:.4f}{spread}, n={self.n}")
        parts += filter(None, (self.failed, self.waits))
        parts += [*self.marks, *(["the best"] if self.best else [])]
        return f"{self.name}: {'; '.join(parts)}"


@dataclass(frozen=True)
class Lines:
    """Curves over an axis.

    Args:
        name: Its name in files.
        title: Its heading.
        curves: The curves.
        x: The axis across.
        y: The axis upwards.
        dotted: Their points are few, and each is drawn.
        floor: Places and heights of a dashed line that the curves are read against.
    """

    name: str
    title: str
    curves: Sequence[Curve]
    x: Axis
    y: Axis
    dotted: bool = False
    floor: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Scatter:
    """Points with their ranges, and a line through each front; ``measure``: what is ``y``."""

    name: str
    title: str
    points: Sequence[Point]
    fronts: Sequence[Sequence[Point]]
    x: Axis
    y: Axis
    measure: str = "loss"


@dataclass(frozen=True)
class OverNumbers:
    """Loss over a key whose values are numbers, with a line through the best at each value."""

    name: str
    title: str
    dots: Sequence[Dot]
    x: Axis
    y: Axis

    @property
    def path(self) -> list[tuple[float, float]]:
        """The best loss at each value; empty if the values are too many for a line to say much."""
        best: dict[float, float] = {}
        for dot in self.dots:
            if dot.loss is not None:
                best[dot.at[0]] = min(dot.loss, best.get(dot.at[0], dot.loss))
        return sorted(best.items()) if len(best) <= _MOST_VALUES else []


@dataclass(frozen=True)
class OverNames:
    """Loss, along the horizontal axis, of each of some names from top to bottom."""

    name: str
    title: str
    dots: Sequence[Dot]
    x: Axis
    y: Axis


@dataclass(frozen=True)
class HeatMap:
    """Loss as a color over two keys; above ``high`` all colors are the same."""

    name: str
    title: str
    dots: Sequence[Dot]
    x: Axis
    y: Axis
    low: float
    high: float

    def shade(self, loss: float) -> float:
        """Return the place of a loss on the scale of colors: 0 for the best, 1 for the worst."""
        if self.high <= self.low:
            return 0.0
        return min(1.0, max(0.0, (loss - self.low) / (self.high - self.low)))


@dataclass(frozen=True)
class Tried:
    """One setting of an arm in a picture of a tuned sweep: a trial, or confirmed runs.

    Args:
        at: The place of its value on the axis of the key.
        score: Its score, or the mean over its seeds; None if it has none.
        tip: Everything about it in one line.
        status: How it ended.
        ends: The lowest and the highest of its seeds.
        best: Whether it is the best trial of its arm.
    """

    at: float
    score: float | None
    tip: str
    status: str = "ok"
    ends: tuple[float, float] = (0.0, 0.0)
    best: bool = False


@dataclass(frozen=True)
class Reach:
    """The window of an arm: from where to where, and whether it may reach farther."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    tip: str = ""


@dataclass(frozen=True)
class ArmTrials:
    """One arm in a picture of a tuned sweep.

    Args:
        row: Number of its row in the table.
        name: What it is called.
        style: The line style of its row.
        trials: Its trials in the order of their places.
        confirmed: Its settings at full budget.
        window: Its window; None if the key has none.
        published: The place of its published value; None if it has none.
        edge: At which edge its best value is, in words; empty if at none.
    """

    row: int
    name: str
    style: int
    trials: Sequence[Tried]
    confirmed: Sequence[Tried] = ()
    window: Reach | None = None
    published: float | None = None
    edge: str = ""


@dataclass(frozen=True)
class OverSetting:
    """The scores of the trials of every arm over one key.

    Args:
        name: Its name in files.
        title: Its heading.
        arms: The arms.
        x: The key.
        y: The score.
        joined: Whether a line goes through the trials of an arm: nothing else varies.
        upwards: Whether a higher score is better.
        grown: Where each growth of the range begins and ends.
    """

    name: str
    title: str
    arms: Sequence[ArmTrials]
    x: Axis
    y: Axis
    joined: bool = True
    upwards: bool = False
    grown: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Strand:
    """One trial in parallel coordinates.

    Args:
        places: Its place on each axis, the score last; None there if it has no score.
        tip: Everything about it in one line.
        kind: ``best``, ``near`` (in the window), ``far``, or how it failed.
    """

    places: Sequence[float | None]
    tip: str
    kind: str


@dataclass(frozen=True)
class Parallel:
    """The trials of one arm as lines through an axis for each key, and one for the score."""

    name: str
    title: str
    row: int
    style: int
    axes: Sequence[Axis]
    strands: Sequence[Strand]
    upwards: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar: an arm's share."""

    row: int
    name: str
    style: int
    share: float


@dataclass(frozen=True)
class Bars:
    """Shares of a whole, each key's below its name."""

    name: str
    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    x: Axis


@dataclass(frozen=True)
class GainMark:
    """A gain with its interval, and everything about it in one line."""

    value: float
    ends: tuple[float, float]
    tip: str


@dataclass(frozen=True)
class GainLine:
    """One component: its gain at each arm's best setting, and at the published one."""

    name: str
    best: GainMark | None
    common: GainMark | None


@dataclass(frozen=True)
class Gains:
    """The gains of components, below the name of each family."""

    name: str
    title: str
    families: Sequence[tuple[str, Sequence[GainLine]]]
    x: Axis


@dataclass(frozen=True)
class Mark:
    """A value at a place, with a bar between two ends, and everything about it in one line."""

    x: float
    y: float
    ends: tuple[float, float]
    tip: str
    hollow: bool = False


@dataclass(frozen=True)
class FamilyCurve:
    """One family in a picture of a ladder.

    Args:
        row: Number of its first row in the table.
        name: What it is called.
        style: Its line style.
        line: The places of its line.
        band: Places with the lower and the upper end of its band.
        marks: What was found at its sizes.
        predicted: What was predicted of a size.
    """

    row: int
    name: str
    style: int
    line: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]]
    marks: Sequence[Mark]
    predicted: Sequence[Mark] = ()


@dataclass(frozen=True)
class OverSize:
    """What families have at each size; ``rates``: the rates of trials over widths."""

    name: str
    title: str
    families: Sequence[FamilyCurve]
    x: Axis
    y: Axis
    rates: bool = False


Picture = (
    Lines
    | Scatter
    | OverNumbers
    | OverNames
    | HeatMap
    | OverSetting
    | Parallel
    | Bars
    | Gains
    | OverSize
)
