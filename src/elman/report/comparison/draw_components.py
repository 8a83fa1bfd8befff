"""Draws what each component gains: a line for each, with its interval, around zero."""

from __future__ import annotations

from elman.report.comparison.axes import Axis
from elman.report.comparison.draw_tuned import dot_sign, with_entries
from elman.report.comparison.frame import Frame, short
from elman.report.comparison.ink import Circle, Drawing, Group, Path, Shape, Text
from elman.report.comparison.pictures import GainMark, Gains

_LINE, _LEFT, _LONGEST = 30, 190, 27
# The two gains of a component stand so far above and below its line.
_APART = 6
_BEST_STYLE = 0


def gains(picture: Gains) -> Drawing:
    """Return the gains as dots with their intervals; what is right of zero helps."""
    count = sum(1 + len(lines) for _, lines in picture.families)
    names, headings, at = [], [], count
    for family, lines in picture.families:
        at -= 1
        headings.append((at + 0.5, family))
        for line in lines:
            at -= 1
            names.append((at + 0.5, line))
    ticks = tuple((place, short(line.name, _LONGEST)) for place, line in names)
    rows = Axis("", 0, count, own_ticks=ticks)
    frame = Frame(picture.x, rows, height=30 + 48 + _LINE * count, left=_LEFT)
    zero = frame.x(0.0)
    ends = [(zero, frame.top), (zero, frame.height - frame.bottom)]
    shapes: list[Shape] = [Path([ends], "published")]
    shapes += [Text(4, frame.y(place) + 4, family, "name") for place, family in headings]
    for place, line in names:
        y = frame.y(place)
        if line.common is not None:
            shapes.append(_mark(frame, line.common, y + _APART, "hollow"))
        if line.best is not None:
            shapes.append(_mark(frame, line.best, y - _APART, ""))
    entries = [
        (dot_sign(""), "at each arm's best setting"),
        (dot_sign("hollow"), "at the published setting"),
    ]
    return with_entries(frame.drawing(picture, shapes), entries)


def _mark(frame: Frame, mark: GainMark, y: float, css: str) -> Shape:
    """Return a gain with its interval, which ends at the edges of the axis."""
    axis = frame.x_axis
    low, high = (frame.x(min(max(end, axis.low), axis.high)) for end in mark.ends)
    x = frame.x(min(max(mark.value, axis.low), axis.high))
    inside: list[Shape] = [Path([[(low, y), (high, y)]]), Circle(x, y, 4.0, css)]
    if css:
        return Group(inside, "sign", tip=mark.tip, at=(x, y))
    return Group(inside, "trial", style=_BEST_STYLE, tip=mark.tip, at=(x, y))
