"""The figures of a report by matplotlib, for a paper: the same data as on the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from elman.report.comparison.axes import Axis
from elman.report.comparison.curves import Curve
from elman.report.comparison.pictures import (
    Dot,
    HeatMap,
    Lines,
    OverNames,
    OverNumbers,
    Picture,
    Scatter,
)
from elman.report.comparison.printable import one_line
from elman.report.comparison.svg import COLOURS, DASHES, LONGEST_NAME, short
from elman.report.comparison.svg_swept import DARK_SHADES, SHADES

CREATOR = "elman mode=report"
_INCHES = (4.8, 3.1)
_INCHES_PER_NAME = 0.26
_STYLES = ("-", "--", ":", "-.")
_HUES = (
    *("#2f78bd", "#cc6a1d", "#1f8f6a", "#c0448a", "#7566c4"),
    *("#6b8a15", "#a0772d", "#cf4740", "#1d93a6", "#70777e"),
)
_BAD = "#b3261e"
_MOST_LABELS = 12
# Of a legend: the height of an entry, the width of its line and of a character.
_ENTRY_HIGH, _ENTRY_LINE, _ENTRY_CHARACTER = 0.13, 0.4, 0.047
# Text stays text in both formats, and the same report makes the same bytes.
_SETTINGS: Any = {
    "svg.hashsalt": "elman",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.size": 8,
}


def figure_bytes(picture: Picture) -> dict[str, bytes]:
    """Return a figure as ``svg`` and as ``pdf``."""
    width, height = _INCHES
    if isinstance(picture, OverNames | HeatMap):
        height = max(1.6, 0.9 + _INCHES_PER_NAME * len(picture.y.given))
    if isinstance(picture, Lines):
        entries = _entries(picture)
        height += _ENTRY_HIGH * len(entries) / _across(entries.values())
    return drawn_bytes(lambda axes: _draw(axes, picture), width, height)


def drawn_bytes(draw: Callable[[Any], None], width: float, height: float) -> dict[str, bytes]:
    """Return what a function draws on axes of some inches, as ``svg`` and as ``pdf``."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = {}
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.add_subplot())
        for kind, metadata in (
            ("svg", {"Date": None, "Creator": CREATOR}),
            ("pdf", {"CreationDate": None, "Creator": CREATOR}),
        ):
            file = io.BytesIO()
            figure.savefig(file, format=kind, metadata=metadata)
            found[kind] = file.getvalue()
    return found


def _draw(axes: Any, picture: Picture) -> None:
    axes.grid(color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    match picture:
        case Lines():
            _lines(axes, picture)
        case Scatter():
            _scatter(axes, picture)
        case HeatMap():
            _heat_map(axes, picture)
        case OverNames():
            _over_names(axes, picture)
        case OverNumbers():
            _over_numbers(axes, picture)


def plain(text: str, most: int = LONGEST_NAME) -> str:
    """Return a name that matplotlib does not take for a formula, of a bearable length."""
    return short(one_line(text), most).replace("$", r"\$")


def _style(style: int) -> dict[str, Any]:
    return {"color": _HUES[style % COLOURS], "linestyle": _STYLES[style // COLOURS % DASHES]}


def _axis(axes: Any, side: str, axis: Axis) -> None:
    """Give one side of a figure its label, range and ticks."""
    if axis.log:
        getattr(axes, f"set_{side}scale")("log")
    getattr(axes, f"set_{side}lim")(axis.low, axis.high)
    getattr(axes, f"set_{side}label")(plain(axis.label))
    if axis.given:
        places, names = zip(*axis.given, strict=True)
        step = max(1, len(places) // 14) if side == "x" else 1
        getattr(axes, f"set_{side}ticks")(places[::step], [plain(n) for n in names[::step]])
        axes.minorticks_off()


def _lines(axes: Any, picture: Lines) -> None:
    entries = _entries(picture)
    across, left = _across(entries.values()), dict(entries)
    if picture.floor:
        axes.plot(*zip(*picture.floor, strict=True), "--", color="0.5", linewidth=0.8)
    for curve in picture.curves:
        label = left.pop(curve.row, None)
        style = _style(curve.style) | {"marker": "." if picture.dotted else ""}
        axes.plot(curve.x, curve.y, linewidth=1.0, markersize=3, label=label, **style)
        if curve.band is not None:
            hue = _HUES[curve.style % COLOURS]
            axes.fill_between(curve.x, *curve.band, color=hue, alpha=0.18, linewidth=0)
        _end(axes, curve)
    _axis(axes, "x", picture.x)
    _axis(axes, "y", picture.y)
    if entries:
        place: Any = {"loc": "outside lower center", "ncols": across}
        axes.figure.legend(fontsize=6, frameon=False, **place)


def _entries(picture: Lines) -> dict[int, str]:
    """Return what the rows of a legend are called; of more rows than line styles there is none."""
    told = {curve.row: plain(curve.told) for curve in reversed(picture.curves)}
    return dict(sorted(told.items())) if len(told) <= COLOURS * DASHES else {}


def _across(names: Iterable[str]) -> int:
    """Return how many entries of a legend stand side by side."""
    longest = max(map(len, names), default=0)
    return max(1, int(_INCHES[0] / (_ENTRY_LINE + _ENTRY_CHARACTER * longest)))


def _end(axes: Any, curve: Curve) -> None:
    """Mark the end of a curve: a cross if it did not end well, a square if it is marked."""
    place = ([curve.x[-1]], [curve.y[-1]])
    if not curve.ok:
        axes.plot(*place, marker="x", color=_HUES[curve.style % COLOURS], markersize=5)
    if curve.marks:
        axes.plot(*place, marker="s", color="#9a5b00", markersize=8, fillstyle="none")


def _scatter(axes: Any, picture: Scatter) -> None:
    for front in picture.fronts:
        axes.plot([p.x for p in front], [p.y for p in front], color="0.5", ls=":", linewidth=1.0)
    fronts = {point.row for front in picture.fronts for point in front}
    for point in picture.points:
        hue = _HUES[point.style % COLOURS]
        axes.plot(point.x_range, (point.y, point.y), color=hue, linewidth=1.0)
        axes.plot((point.x, point.x), point.y_range, color=hue, linewidth=1.0)
        filled = hue if point.known else "white"
        axes.plot([point.x], [point.y], "o", color=hue, markerfacecolor=filled, markersize=4)
        if point.marks:
            axes.plot([point.x], [point.y], "s", color="#9a5b00", markersize=8, fillstyle="none")
        if len(picture.points) <= _MOST_LABELS or point.row in fronts:
            on_left = picture.x.share(point.x) > 0.5
            axes.annotate(
                plain(point.told),
                (point.x, point.y),
                xytext=(-5 if on_left else 5, 4),
                textcoords="offset points",
                ha="right" if on_left else "left",
                fontsize=6.5,
            )
    _axis(axes, "x", picture.x)
    _axis(axes, "y", picture.y)


def _over_numbers(axes: Any, picture: OverNumbers) -> None:
    top = picture.y.high
    axes.plot(
        [a for a, _ in picture.path], [min(b, top) for _, b in picture.path], color="0.6", lw=0.8
    )
    for dot in picture.dots:
        if dot.loss is None:
            place = (dot.at[0], top)
            axes.plot(*([value] for value in place), "x", color=_BAD, clip_on=False)
            words, hue = dot.failed or dot.waits, _BAD
        else:
            place = (dot.at[0], min(dot.loss, top))
            _dot(axes, dot, place, ((dot.at[0],) * 2, [min(end, top) for end in dot.ends]))
            words, hue = f"best: {dot.loss:.4f}" if dot.best else "", "black"
        axes.annotate(
            plain(words), place, xytext=(0, 7), textcoords="offset points", color=hue, ha="center"
        )
    _axis(axes, "x", picture.x)
    _axis(axes, "y", picture.y)


def _over_names(axes: Any, picture: OverNames) -> None:
    right = picture.x.high
    for dot in picture.dots:
        if dot.loss is None:
            axes.annotate(plain(dot.failed or dot.waits), (picture.x.low, dot.at[0]), color=_BAD)
            continue
        place = (min(dot.loss, right), dot.at[0])
        _dot(axes, dot, place, ([min(end, right) for end in dot.ends], (dot.at[0],) * 2))
    _axis(axes, "x", picture.x)
    _axis(axes, "y", picture.y)
    axes.invert_yaxis()


def _dot(axes: Any, dot: Dot, place: tuple[float, float], bar: tuple[Any, Any]) -> None:
    hue = _HUES[dot.style % COLOURS]
    axes.plot(*bar, color=hue, linewidth=1.0)
    axes.plot([place[0]], [place[1]], "o", color=hue, markersize=4)
    for holds, sign, edge, size in (
        (dot.best, "o", "black", 9),
        (bool(dot.marks), "s", "#9a5b00", 9),
        (bool(dot.failed), "x", _BAD, 7),
    ):
        if holds:
            axes.plot([place[0]], [place[1]], sign, color=edge, markersize=size, fillstyle="none")


def _heat_map(axes: Any, picture: HeatMap) -> None:
    from matplotlib.patches import Rectangle

    axes.grid(visible=False)
    for dot in sorted(picture.dots, key=lambda dot: dot.best):
        corner = (dot.at[0] - 0.5, dot.at[1] - 0.5)
        words, ink = dot.failed or dot.waits, _BAD
        style: dict[str, Any] = {"facecolor": "white", "edgecolor": _BAD, "hatch": "////"}
        if dot.loss is not None:
            shade = min(len(SHADES) - 1, int(picture.shade(dot.loss) * len(SHADES)))
            style = {"facecolor": SHADES[shade], "edgecolor": "white"}
            ink = "white" if shade < DARK_SHADES else "black"
            words = f"{dot.loss:.3f}{'*' if dot.marks or dot.failed else ''}"
        if dot.best:
            style |= {"edgecolor": "#cc6a1d", "linewidth": 2.5}
        axes.add_patch(Rectangle(corner, 1, 1, **style))
        if len(picture.x.given) <= _MOST_LABELS:
            words, box = plain(words), None
            if dot.loss is None:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            form: Any = {"ha": "center", "va": "center", "fontsize": 6.5, "bbox": box}
            axes.annotate(words, dot.at, color=ink, **form)
    _axis(axes, "x", picture.x)
    _axis(axes, "y", picture.y)
