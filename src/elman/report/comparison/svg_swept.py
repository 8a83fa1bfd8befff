"""Pictures of what was swept, as SVG: loss over one key, and a heat map of two."""

from __future__ import annotations

from dataclasses import replace

from elman.report.comparison.axes import Axis
from elman.report.comparison.pictures import Dot, HeatMap, OverNames, OverNumbers
from elman.report.comparison.svg import Frame, cross, escape, half_width, marked, short, style_of

_LINE_HEIGHT = 38
_DOT_BELOW = 27
# Room in a cell, in units of the picture, that its number takes.
_NUMBER_WIDTH = 40
_SIDE, _MOST_NAME = 9.2, 18
# Colours of the heat map from the best loss to the worst; the first three need white type.
SHADES = ("#0b3c5d", "#1f6f8b", "#3f9c8f", "#8cc084", "#d9e08b", "#fdf3c4")
DARK_SHADES = 3
_HATCH = (
    '<pattern id="{name}-hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7" /></pattern>'
)


def over_numbers(picture: OverNumbers) -> str:
    """Return the loss over a key whose values are numbers."""
    frame, x, y = Frame(), picture.x, picture.y
    path = " ".join(
        f"{frame.x(x, a):.1f},{frame.y(y, min(b, y.high)):.1f}" for a, b in picture.path
    )
    parts = [f'<polyline class="through" points="{path}" />']
    free = 0.0
    for dot in sorted(picture.dots, key=lambda dot: dot.at):
        place = frame.x(x, dot.at[0])
        if dot.loss is None:
            half = half_width(dot.failed or dot.waits)
            label = _words(dot, place, frame.top + 26, "middle", best=True)
            label, free = (label, place + half) if place - half > free else ("", free)
            parts.append(_dot(dot, place, frame.top + 8, "", label))
            continue
        height = frame.y(y, min(dot.loss, y.high))
        low, high = (frame.y(y, min(value, y.high)) for value in dot.ends)
        anchor, side = ("end", place - 12) if x.share(dot.at[0]) > 0.5 else ("start", place + 12)
        label = _words(dot, side, height - 9, anchor, best=True)
        bar = f'<path d="M{place:.1f} {low:.1f}V{high:.1f}" />'
        parts.append(_dot(dot, place, height, bar, label))
    return frame.svg(picture.name, picture.title, x, y, "".join(parts))


def over_names(picture: OverNames) -> str:
    """Return the loss of each of some names, each below its name."""
    lines = len(picture.y.given)
    frame = Frame(height=30 + 48 + _LINE_HEIGHT * lines, left=14)
    x, y = picture.x, picture.y
    parts = []
    for place, name in y.given:
        at = frame.top + _LINE_HEIGHT * place
        parts.append(
            f'<text class="name" x="{frame.left}" y="{at + 13:.1f}">{escape(short(name))}'
            f'</text><path class="rule" d="M{frame.left} {at + _DOT_BELOW:.1f}H562" />'
        )
    told: set[float] = set()
    for dot in sorted(picture.dots, key=lambda dot: (dot.loss is None, dot.loss or 0.0)):
        top = frame.top + _LINE_HEIGHT * dot.at[0]
        height = top + _DOT_BELOW
        # Of several rows with one name, the best has its loss in words.
        label = "" if dot.at[0] in told else _words(dot, 562, top + 13, "end")
        told.add(dot.at[0])
        if dot.loss is None:
            parts.append(_dot(dot, frame.left + 6, height, "", label))
            continue
        place = frame.x(x, min(dot.loss, x.high))
        low, high = (frame.x(x, min(value, x.high)) for value in dot.ends)
        parts.append(
            _dot(dot, place, height, f'<path d="M{low:.1f} {height:.1f}H{high:.1f}" />', label)
        )
    unruled = replace(y, given=((y.low, ""),))  # each name has its own rule
    return frame.svg(picture.name, picture.title, x, unruled, "".join(parts))


def _words(dot: Dot, x: float, y: float, anchor: str, *, best: bool = False) -> str:
    """Return the loss of a row, or how it failed, as text; ``best``: only that of the best row."""
    if best and not dot.best and dot.loss is not None:
        return ""
    words, css = dot.failed or dot.waits, "bad" if dot.failed else "wait"
    if dot.loss is not None:
        words, css = f"{'best: ' * dot.best}{dot.loss:.4f}", "best" if dot.best else "loss"
    return (
        f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(short(words))}</text>"
    )


def _dot(dot: Dot, x: float, y: float, bar: str, label: str) -> str:
    """Return one row: a dot with its range, or a cross if nothing ended well, and its label."""
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="8" />' if dot.best else ""
    tip = f"><title>{escape(dot.told)}</title>"
    if dot.loss is None:
        sign = cross(x, y) if dot.failed else f'<circle class="hollow" cx="{x}" cy="{y}" r="3" />'
        body = f'<g class="bad" data-at="{x:.1f} {y:.1f}" {tip}{sign}</g>'
    else:
        body = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {tip}</circle>'
        # Some of its runs failed: a small cross beside the mean of the others.
        body += f'<g class="bad">{cross(x + 11, y)}</g>' if dot.failed else ""
    return (
        f'<g class="point {style_of(dot.style)}" data-row="{dot.row}">{bar}{ring}'
        f"{marked(x, y, dot.marks)}{body}{label}</g>"
    )


def heat_map(picture: HeatMap) -> str:
    """Return a cell for each pair of values; what failed is hatched and has its word."""
    columns, lines = len(picture.x.given), len(picture.y.given)
    longest = max(len(short(name, _MOST_NAME)) for _, name in picture.y.given)
    left = int(14 + _SIDE * longest)
    across = (580 - left - 18) / columns
    down = min(44.0, max(18.0, across))
    frame = Frame(height=int(30 + 48 + down * lines), left=left)
    parts = [_HATCH.format(name=picture.name)]
    best_last = sorted(picture.dots, key=lambda dot: dot.best)
    parts += [_cell(picture, dot, frame, across, down) for dot in best_last]
    x, y = (_short_names(axis) for axis in (picture.x, picture.y))
    return frame.svg(picture.name, picture.title, x, y, "".join(parts))


def _short_names(axis: Axis) -> Axis:
    return replace(axis, given=tuple((at, short(name, _MOST_NAME)) for at, name in axis.given))


def _cell(picture: HeatMap, dot: Dot, frame: Frame, across: float, down: float) -> str:
    x, y = frame.x(picture.x, dot.at[0]), frame.y(picture.y, dot.at[1])
    corner = f'x="{x - across / 2:.1f}" y="{y - down / 2:.1f}"'
    size = f'width="{across:.1f}" height="{down:.1f}"'
    fill, css, words = f'fill="url(#{picture.name}-hatch)"', "on-none", dot.failed
    if not dot.failed:
        fill, css, words = 'class="none"', "on-wait", dot.waits
    if dot.loss is not None:
        shade = min(len(SHADES) - 1, int(picture.shade(dot.loss) * len(SHADES)))
        fill, css = f'fill="{SHADES[shade]}"', "on-dark" if shade < DARK_SHADES else "on-light"
        words = f"{dot.loss:.3f}{'*' if dot.marks or dot.failed else ''}"
    text = ""
    if across >= _NUMBER_WIDTH or dot.best:
        text = f'<text class="{css}" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">'
        text += f"{escape(short(words, max(3, int(across / 6.5))))}</text>"
    best = " best" if dot.best else ""
    return (
        f'<g class="cell{best}" data-row="{dot.row}" data-at="{x:.1f} {y:.1f}">'
        f"<title>{escape(dot.told)}</title>"
        f"<rect {corner} {size} {fill} />{text}</g>"
    )
