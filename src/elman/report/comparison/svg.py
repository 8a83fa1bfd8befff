"""Line plots and scatter plots as SVG: small, self-contained, for light and dark themes."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from elman.report.comparison.curves import Curve
from elman.report.comparison.printable import printable

COLOURS, DASHES = 10, 4
"""Colours distinguish rows; beyond ten rows dashes do too. That makes forty different lines."""
WIDTH, HEIGHT = 580, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 24, 12, 44
_TICKS = 6
_LABEL_HEIGHT = 13
_MANY = 12


def escape(text: object) -> str:
    """Return text for HTML and SVG."""
    return html.escape(printable(text))


def style_of(row: int) -> str:
    """Return the classes that give a row its colour and its dashes."""
    return f"c{row % COLOURS} d{row // COLOURS % DASHES}"


@dataclass(frozen=True)
class Axis:
    """One axis.

    Args:
        label: What it measures, with its unit.
        low: Where it begins.
        high: Where it ends.
    """

    label: str
    low: float
    high: float

    @property
    def ticks(self) -> list[float]:
        """Round numbers along it."""
        raw = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]

    def share(self, value: float) -> float:
        """Return where a value lies, 0 at the beginning and 1 at the end."""
        return (value - self.low) / (self.high - self.low)

    @property
    def shown_ticks(self) -> list[tuple[float, str]]:
        """The ticks with their texts, all in one unit."""
        ticks = self.ticks
        top = max(map(abs, ticks), default=0.0)
        scale, unit = next(
            ((s, u) for s, u in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if top >= 10 * s),
            (1.0, ""),
        )
        gap = (ticks[1] - ticks[0]) / scale if len(ticks) > 1 else 1.0
        digits = max(0, -math.floor(math.log10(gap) + 1e-9)) if gap > 0 else 0
        return [(tick, f"{tick / scale:,.{digits}f}{unit}") for tick in ticks]


def axis(label: str, values: Sequence[float], *, from_zero: bool = False) -> Axis:
    """Return an axis that holds all of some finite values, with a margin."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(0.0, low) if from_zero else low
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    margin = 0.04 * (high - low)
    return Axis(label, low if from_zero else low - margin, high + margin)


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
    """

    row: int
    name: str
    x: float
    y: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    known: bool = True
    marks: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """Return its name with its marks."""
        marks = [*self.marks, *([] if self.known else ["n=1"])]
        return f"{self.name} ({', '.join(marks)})" if marks else self.name


def line_plot(name: str, title: str, curves: Sequence[Curve], x: Axis, y: Axis) -> str:
    """Return a plot of curves, cut off at the edge of the axes."""
    many = ' class="many"' if len(curves) > _MANY else ""
    parts = [f'<g clip-path="url(#{name}-inside)"{many}>']
    for curve in curves:
        points = " ".join(
            f"{_x(x, a):.1f},{_clamped(_y(y, b)):.1f}"
            for a, b in zip(curve.x.tolist(), curve.y.tolist(), strict=True)
        )
        tip = f"<title>{escape(curve.name)}</title>"
        end_x, end_y = _x(x, float(curve.x[-1])), _clamped(_y(y, float(curve.y[-1])))
        parts.append(
            f'<g class="line {style_of(curve.row)}" data-row="{curve.row}">'
            f'<polyline points="{points}">{tip}</polyline>{_end(end_x, end_y, curve.ok)}</g>'
        )
    return _plot(name, title, x, y, "".join([*parts, "</g>"]))


def scatter_plot(
    name: str,
    title: str,
    points: Sequence[Point],
    fronts: Sequence[Sequence[Point]],
    x: Axis,
    y: Axis,
) -> str:
    """Return a plot of points with their ranges, and a line through each front.

    With more than twelve points, only those on a front have their names beside them. The others
    show theirs when a reader picks them.
    """
    parts = []
    for front in (front for front in fronts if len(front) > 1):
        path = " ".join(f"{_x(x, p.x):.1f},{_y(y, p.y):.1f}" for p in front)
        parts.append(f'<polyline class="front" points="{path}" />')
    on_fronts = [point for front in fronts for point in front]
    named = points if len(points) <= _MANY else on_fronts
    heights = {p.row: height for p, height in zip(named, _label_heights(named, y), strict=True)}
    for point in points:
        px, py = _x(x, point.x), _y(y, point.y)
        left, right = (_x(x, value) for value in point.x_range)
        low, high = (_y(y, value) for value in point.y_range)
        on_left = x.share(point.x) > 0.6
        anchor, text_x = ("end", px - 8) if on_left else ("start", px + 8)
        quiet = "" if point.row in heights else ' class="quiet"'
        label_y = heights.get(point.row, py) - 6
        label = (
            f'<text{quiet} x="{text_x:.1f}" y="{label_y:.1f}" text-anchor="{anchor}">'
            f"{escape(_short(point.name))}{' *' if point.marks else ''}</text>"
        )
        hollow = "" if point.known else ' class="hollow"'
        around = f'<path class="mark" d="M{px - 7:.1f} {py - 7:.1f}h14v14h-14z" />'
        parts.append(
            f'<g class="point {style_of(point.row)}" data-row="{point.row}">'
            f'<path d="M{left:.1f} {py:.1f}H{right:.1f}M{px:.1f} {low:.1f}V{high:.1f}" />'
            f"{around if point.marks else ''}"
            f'<circle{hollow} cx="{px:.1f}" cy="{py:.1f}" r="4"><title>{escape(point.told)}</title>'
            f"</circle>{label}</g>"
        )
    return _plot(name, title, x, y, "".join(parts))


def sample(row: int) -> str:
    """Return the piece of line for the legend."""
    return (
        f'<svg class="sample line {style_of(row)}" width="26" height="10" aria-hidden="true">'
        '<polyline points="1,5 25,5" /></svg>'
    )


def _plot(name: str, title: str, x: Axis, y: Axis, inside: str) -> str:
    return (
        f'<svg class="plot" id="{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{name}-title"><title id="{name}-title">{escape(title)}</title>'
        f'<clipPath id="{name}-inside"><rect x="{_LEFT}" y="{_TOP}" '
        f'width="{WIDTH - _LEFT - _RIGHT}" height="{HEIGHT - _TOP - _BOTTOM}" /></clipPath>'
        f"{_grid(x, y)}{inside}</svg>"
    )


def _grid(x: Axis, y: Axis) -> str:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = ['<g class="grid">']
    for tick, text in x.shown_ticks:
        at = _x(x, tick)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{bottom}" />')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    for tick, text in y.shown_ticks:
        at = _y(y, tick)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{right}" />')
        parts.append(f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f'{escape(x.label)}</text><text transform="translate(14 {middle}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text></g>'
    )
    return "".join(parts)


def _end(x: float, y: float, ok: bool) -> str:
    """Return how a curve ends: a dot, or a cross for a run that did not end well."""
    if ok:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" />'
    return f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8" />'


def _label_heights(points: Sequence[Point], y: Axis) -> list[float]:
    """Return a height for each label, moved down where two would overlap."""
    heights = [0.0] * len(points)
    last = -math.inf
    for place in sorted(range(len(points)), key=lambda place: _y(y, points[place].y)):
        last = max(_y(y, points[place].y), last + _LABEL_HEIGHT)
        heights[place] = last
    return heights


def _short(name: str) -> str:
    return name if len(name) <= 36 else f"{name[:35]}\N{HORIZONTAL ELLIPSIS}"


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.share(value) * (WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - _BOTTOM - axis.share(value) * (HEIGHT - _TOP - _BOTTOM)


def _clamped(pixels: float) -> float:
    """Limit a value far outside to the range that SVG viewers can compute with."""
    return min(max(pixels, -1000.0), 1000.0 + HEIGHT)
