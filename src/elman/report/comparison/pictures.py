"""What the plots show, before it is drawn: as SVG on the page, or by matplotlib for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.report.comparison.axes import Axis
from elman.report.comparison.curves import Curve

_MOST_VALUES = 24


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
    def told(self) -> str:
        """Return its name with its marks."""
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
    def told(self) -> str:
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
    """Loss as a colour over two keys; above ``high`` all colours are the same."""

    name: str
    title: str
    dots: Sequence[Dot]
    x: Axis
    y: Axis
    low: float
    high: float

    def shade(self, loss: float) -> float:
        """Return the place of a loss on the scale of colours: 0 for the best, 1 for the worst."""
        if self.high <= self.low:
            return 0.0
        return min(1.0, max(0.0, (loss - self.low) / (self.high - self.low)))


Picture = Lines | Scatter | OverNumbers | OverNames | HeatMap
