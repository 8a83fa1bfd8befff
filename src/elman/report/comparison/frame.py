"""The axes of a picture with their grid, and the signs that several pictures share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elman.report.comparison.axes import Axis
from elman.report.comparison.ink import Drawing, Group, Path, Shape, Text
from elman.report.comparison.pictures import Picture

# On a narrow screen the type is larger in the units of the picture, and this much is needed.
LETTER, _BETWEEN = 8.8, 11
# A digit of the widest usual font (DejaVu Sans) there, the gap to the axis, and the least margin.
_DIGIT, _BESIDE, _LEAST_LEFT = 10.2, 6, 58
LONGEST_NAME = 36
"""Characters of a name in a picture."""


@dataclass(frozen=True)
class Frame:
    """The size of a picture, the margins around its axes, and the axes.

    Without a margin on the left of its own, a picture has as much as the texts beside its upward
    axis need.
    """

    x_axis: Axis
    y_axis: Axis
    width: int = 580
    height: int = 340
    left: int = 0
    right: int = 18
    top: int = 30
    bottom: int = 48

    def __post_init__(self) -> None:
        if not self.left:
            longest = max((len(text) for _, text in self.y_axis.shown_ticks), default=0)
            room = math.ceil(longest * _DIGIT) + _BESIDE
            object.__setattr__(self, "left", max(_LEAST_LEFT, room))

    def x(self, value: float) -> float:
        """Return the horizontal place of a value."""
        return self.left + self.x_axis.share(value) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Return the vertical place of a value, limited to what SVG viewers can compute with."""
        tall = self.height - self.top - self.bottom
        place = self.height - self.bottom - self.y_axis.share(value) * tall
        return min(max(place, -1000.0), 1000.0 + self.height)

    def drawing(self, picture: Picture, shapes: Sequence[Shape]) -> Drawing:
        """Return a picture with its grid; its facts give a script the axes."""
        x, y = self.x_axis, self.y_axis
        inside = (self.left, self.width - self.right, self.top, self.height - self.bottom)
        facts = {
            "data-ends": f"{x.low:.9g} {x.high:.9g} {y.low:.9g} {y.high:.9g}",
            "data-box": " ".join(map(str, inside)),
            "data-x": x.label,
            "data-y": y.label,
        }
        if x.log or y.log:
            facts["data-log"] = "x" * x.log + "y" * y.log
        every = [self._grid(), *shapes]
        size = self.width, self.height
        return Drawing(picture.name, picture.title, *size, every, inside, facts)

    def _grid(self) -> Group:
        bottom, right = self.height - self.bottom, self.width - self.right
        shapes: list[Shape] = []
        across = [(self.x(value), text) for value, text in self.x_axis.shown_ticks]
        for place, text in _apart(across):
            shapes.append(Path([[(place, self.top), (place, bottom)]]))
            shapes.append(Text(place, bottom + 17, text, anchor="middle"))
        for tick, text in self.y_axis.shown_ticks:
            at = self.y(tick)
            shapes.append(Path([[(self.left, at), (right, at)]]))
            shapes.append(Text(self.left - _BESIDE, at + 4, text, anchor="end"))
        shapes.append(Text(right, self.height - 10, self.x_axis.label, anchor="end"))
        shapes.append(Text(4, 15, self.y_axis.label))
        return Group(shapes, "grid")


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the ticks whose texts do not overlap, also where the type is large."""
    apart: list[tuple[float, str]] = []
    end = -1e9
    for place, text in ticks:
        half = half_width(text)
        if place - half > end:
            apart.append((place, text))
            end = place + half
    return apart


def half_width(text: str) -> float:
    """Return half of the room that a text in the middle of its place needs, with a gap."""
    return (len(text) * LETTER + _BETWEEN) / 2


def short(name: str, most: int = LONGEST_NAME) -> str:
    """Return a name that is not too long for a picture; the whole name is in its tip."""
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def mark(x: float, y: float, marks: Sequence[str]) -> list[Shape]:
    """Return the dashed square around what was contended, slow, resumed or unequal."""
    corners = [(x - 7, y - 7), (x + 7, y - 7), (x + 7, y + 7), (x - 7, y + 7), (x - 7, y - 7)]
    return [Path([corners], "mark")] if marks else []


def cross(x: float, y: float) -> Path:
    """Return the cross of a run that did not end well."""
    down, up = [(x - 4, y - 4), (x + 4, y + 4)], [(x + 4, y - 4), (x - 4, y + 4)]
    return Path([down, up], "cross")
