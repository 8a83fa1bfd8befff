"""What all pictures of the page have in common: small SVG for light and dark themes."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from elman.report.comparison.axes import Axis
from elman.report.comparison.printable import printable

COLOURS, DASHES = 10, 4
"""Colours distinguish rows; beyond ten rows dashes do too. That makes forty different lines."""
# On a narrow screen the type is larger in the units of the picture, and this much is needed.
_WIDE_CHARACTER, _BETWEEN = 8.8, 11
LONGEST_NAME = 36


def escape(text: object) -> str:
    """Return text for HTML and SVG."""
    return html.escape(printable(text))


def style_of(style: int) -> str:
    """Return the classes that give a row its colour and its dashes; they repeat after forty."""
    return f"c{style % COLOURS} d{style // COLOURS % DASHES}"


@dataclass(frozen=True)
class Frame:
    """The size of a picture and of the margins around its axes."""

    width: int = 580
    height: int = 340
    left: int = 58
    right: int = 18
    top: int = 30
    bottom: int = 48

    def x(self, axis: Axis, value: float) -> float:
        """Return the horizontal place of a value."""
        return self.left + axis.share(value) * (self.width - self.left - self.right)

    def y(self, axis: Axis, value: float) -> float:
        """Return the vertical place of a value, limited to what SVG viewers can compute with."""
        tall = self.height - self.top - self.bottom
        place = self.height - self.bottom - axis.share(value) * tall
        return min(max(place, -1000.0), 1000.0 + self.height)

    def svg(self, name: str, title: str, x: Axis, y: Axis, inside: str) -> str:
        """Return a picture with its grid; its data attributes give a script the linear axes."""
        ends = f"{x.low:.9g} {x.high:.9g} {y.low:.9g} {y.high:.9g}"
        box = f"{self.left} {self.width - self.right} {self.top} {self.height - self.bottom}"
        return (
            f'<svg class="plot" id="{name}" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'data-ends="{ends}" data-box="{box}" data-x="{escape(x.label)}" '
            f'data-y="{escape(y.label)}" '
            f'aria-labelledby="{name}-title"><title id="{name}-title">{escape(title)}</title>'
            f'<clipPath id="{name}-inside"><rect x="{self.left}" y="{self.top}" '
            f'width="{self.width - self.left - self.right}" '
            f'height="{self.height - self.top - self.bottom}" /></clipPath>'
            f"{self._grid(x, y)}{inside}</svg>"
        )

    def _grid(self, x: Axis, y: Axis) -> str:
        bottom, right = self.height - self.bottom, self.width - self.right
        parts = ['<g class="grid">']
        for place, text in self._apart([(self.x(x, v), text) for v, text in x.shown_ticks]):
            parts.append(f'<path d="M{place:.1f} {self.top}V{bottom}" />')
            parts.append(
                f'<text x="{place:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(text)}'
                "</text>"
            )
        for tick, text in y.shown_ticks:
            at = self.y(y, tick)
            parts.append(f'<path d="M{self.left} {at:.1f}H{right}" />')
            parts.append(
                f'<text x="{self.left - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}'
                "</text>"
            )
        parts.append(
            f'<text x="{right}" y="{self.height - 10}" text-anchor="end">{escape(x.label)}</text>'
            f'<text x="4" y="15">{escape(y.label)}</text></g>'
        )
        return "".join(parts)

    @staticmethod
    def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
        """Return the ticks whose texts do not overlap, also where the type is large."""
        kept: list[tuple[float, str]] = []
        end = -1e9
        for place, text in ticks:
            half = half_width(text)
            if place - half > end:
                kept.append((place, text))
                end = place + half
        return kept


def half_width(text: str) -> float:
    """Return half of the room that a text in the middle of its place needs, with a gap."""
    return (len(text) * _WIDE_CHARACTER + _BETWEEN) / 2


def short(name: str, most: int = LONGEST_NAME) -> str:
    """Return a name that is not too long for a picture; the whole name is in its tip."""
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def marked(x: float, y: float, marks: Sequence[str]) -> str:
    """Return the dashed square around what was contended, slow, resumed or unequal."""
    return f'<path class="mark" d="M{x - 7:.1f} {y - 7:.1f}h14v14h-14z" />' if marks else ""


def cross(x: float, y: float) -> str:
    """Return the cross of a run that did not end well."""
    return f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8" />'


def sample(style: int) -> str:
    """Return the piece of line for the legend."""
    return (
        f'<svg class="sample line {style_of(style)}" width="26" height="10" aria-hidden="true">'
        '<polyline points="1,5 25,5" /></svg>'
    )
