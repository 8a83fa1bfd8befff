"""Line plots and scatter plots as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from elman.report.comparison.curves import Curve
from elman.report.comparison.pictures import Lines, Point, Scatter
from elman.report.comparison.svg import Frame, cross, escape, marked, short, style_of

_FRAME = Frame()
_LABEL_HEIGHT = 17
_MANY = 12


def line_plot(lines: Lines) -> str:
    """Return a plot of curves, cut off at the edge of the axes."""
    many = ' class="many"' if len(lines.curves) > _MANY else ""
    inside = "".join(_curve(lines, curve) for curve in lines.curves)
    if lines.floor:
        places = [(_FRAME.x(lines.x, x), _FRAME.y(lines.y, y)) for x, y in lines.floor]
        inside = f'<polyline class="floor" points="{_points(places)}" />{inside}'
    clipped = f'<g clip-path="url(#{lines.name}-inside)"{many}>{inside}</g>'
    return _FRAME.svg(lines.name, lines.title, lines.x, lines.y, clipped)


def _curve(lines: Lines, curve: Curve) -> str:
    xs = [_FRAME.x(lines.x, value) for value in curve.x.tolist()]
    ys = [_FRAME.y(lines.y, value) for value in curve.y.tolist()]
    tip = f"<title>{escape(curve.told)}</title>"
    band = ""
    if curve.band is not None:
        lows, highs = ([_FRAME.y(lines.y, v) for v in side.tolist()] for side in curve.band)
        around = [*zip(xs, lows, strict=True), *zip(xs[::-1], highs[::-1], strict=True)]
        band = f'<polygon points="{_points(around)}" />'
    dots = [(x, y, 1.8) for x, y in zip(xs, ys, strict=True)] if lines.dotted else []
    end = cross(xs[-1], ys[-1])
    if curve.ok:
        end, dots = "", [*dots[:-1], (xs[-1], ys[-1], 2.4)]
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.2f}" r="{r}" />' for x, y, r in dots)
    return (
        f'<g class="line {style_of(curve.style)}" data-row="{curve.row}">{band}'
        f'<polyline points="{_points(zip(xs, ys, strict=True))}">{tip}</polyline>{circles}{end}'
        f"{marked(xs[-1], ys[-1], curve.marks)}</g>"
    )


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in places)


def scatter_plot(scatter: Scatter) -> str:
    """Return a plot of points with their ranges, and a line through each front.

    With more than twelve points, only those on a front have their names beside them. The others
    show theirs when a reader picks them.
    """
    x, y = scatter.x, scatter.y
    parts = []
    for front in (front for front in scatter.fronts if len(front) > 1):
        path = " ".join(f"{_FRAME.x(x, p.x):.1f},{_FRAME.y(y, p.y):.1f}" for p in front)
        parts.append(f'<polyline class="front" points="{path}" />')
    on_fronts = [point for front in scatter.fronts for point in front]
    named = scatter.points if len(scatter.points) <= _MANY else on_fronts
    heights = _label_heights([(p.row, _FRAME.y(y, p.y)) for p in named])
    parts += [_point(scatter, point, heights.get(point.row)) for point in scatter.points]
    return _FRAME.svg(scatter.name, scatter.title, x, y, "".join(parts))


def _point(scatter: Scatter, point: Point, height: float | None) -> str:
    """Return one point; without a height its label is hidden until a reader picks it."""
    x, y = scatter.x, scatter.y
    px, py = _FRAME.x(x, point.x), _FRAME.y(y, point.y)
    left, right = (_FRAME.x(x, value) for value in point.x_range)
    low, high = (_FRAME.y(y, value) for value in point.y_range)
    on_left = x.share(point.x) > 0.5
    anchor, text_x = ("end", px - 8) if on_left else ("start", px + 8)
    quiet = ' class="quiet"' if height is None else ""
    label_y = (py if height is None else height) - 6
    label = (
        f'<text{quiet} x="{text_x:.1f}" y="{label_y:.1f}" text-anchor="{anchor}">'
        f"{escape(short(point.name))}{' *' if point.marks else ''}</text>"
    )
    hollow = "" if point.known else ' class="hollow"'
    tip = f"{point.told}: {point.x:,.0f} tok/s, {scatter.measure} {point.y:.4f}"
    return (
        f'<g class="point {style_of(point.style)}" data-row="{point.row}">'
        f'<path d="M{left:.1f} {py:.1f}H{right:.1f}M{px:.1f} {low:.1f}V{high:.1f}" />'
        f"{marked(px, py, point.marks)}"
        f'<circle{hollow} cx="{px:.1f}" cy="{py:.1f}" r="4" data-tip="{escape(tip)}">'
        f"<title>{escape(point.told)}</title></circle>{label}</g>"
    )


def _label_heights(places: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Return a height for each label, moved down where two would overlap, while there is room."""
    heights: dict[int, float] = {}
    last = -math.inf
    for row, place in sorted(places, key=lambda pair: pair[1]):
        moved = max(place, last + _LABEL_HEIGHT)
        if moved > _FRAME.height - _FRAME.bottom + 6:
            break
        heights[row] = last = moved
    return heights
