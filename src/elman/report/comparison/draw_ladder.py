"""Draws the pictures of a ladder: what families score, or at which rate, over their size."""

from __future__ import annotations

from elman.report.comparison.draw_tuned import Sign, dot_sign, marker, with_entries
from elman.report.comparison.frame import Frame
from elman.report.comparison.ink import Circle, Drawing, Group, Path, Shape
from elman.report.comparison.pictures import FamilyCurve, Mark, OverSize

_LEFT = 72
_RING, _HELD_OUT = 7.0, 5.0


def over_size(picture: OverSize) -> Drawing:
    """Return each family's line with its band, its sizes, and what was predicted."""
    frame = Frame(picture.x, picture.y, left=_LEFT)
    bands = [_band(curve, frame) for curve in picture.families if curve.band]
    families = [_family(curve, frame) for curve in picture.families]
    drawing = frame.drawing(picture, [Group([*bands, *families], clipped=True)])
    return with_entries(drawing, _meanings(picture))


def _band(curve: FamilyCurve, frame: Frame) -> Shape:
    lows = [(frame.x(x), frame.y(low)) for x, low, _ in curve.band]
    highs = [(frame.x(x), frame.y(high)) for x, _, high in curve.band]
    shade = Path([[*lows, *highs[::-1]]], "shade", "polygon")
    return Group([shade], "trial", curve.row, curve.style)


def _family(curve: FamilyCurve, frame: Frame) -> Group:
    shapes: list[Shape] = []
    if len(curve.line) > 1:
        places = [(frame.x(x), frame.y(y)) for x, y in curve.line]
        shapes.append(Path([places], element="polyline", tip=curve.name))
    shapes += [_mark(one, curve.style, frame) for one in curve.marks]
    shapes += [_ring(one, frame) for one in curve.predicted]
    return Group(shapes, "trial", curve.row, curve.style)


def _bar(one: Mark, frame: Frame) -> list[Shape]:
    x, (low, high) = frame.x(one.x), map(frame.y, one.ends)
    return [Path([[(x, low), (x, high)]])] if low != high else []


def _mark(one: Mark, style: int, frame: Frame) -> Group:
    x, y = frame.x(one.x), frame.y(one.y)
    sign = marker(style, x, y, _HELD_OUT, "hollow") if one.hollow else marker(style, x, y)
    return Group([*_bar(one, frame), sign], tip=one.tip, at=(x, y))


def _ring(one: Mark, frame: Frame) -> Group:
    x, y = frame.x(one.x), frame.y(one.y)
    return Group([*_bar(one, frame), Circle(x, y, _RING, "ring")], tip=one.tip, at=(x, y))


def _meanings(picture: OverSize) -> list[tuple[Sign, str]]:
    """Return the signs of a picture with their meaning, those alone that it has."""
    marks = [mark for curve in picture.families for mark in curve.marks]
    words = ("best rate of trials", "best of the checking trials") if picture.rates else ()
    filled, hollow = words or ("trained", "held out")
    entries: list[tuple[Sign, str]] = []
    if any(not one.hollow for one in marks):
        entries.append((dot_sign(""), filled))
    if any(one.hollow for one in marks):
        entries.append((dot_sign("hollow"), hollow))
    if any(curve.predicted for curve in picture.families):
        entries.append((lambda x, y: [Circle(x, y, _RING - 0.5, "ring")], "predicted"))
    return entries
