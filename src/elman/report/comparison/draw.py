"""Draws every picture of a report: from what it shows to shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elman.report.comparison.axes import Axis
from elman.report.comparison.blocks import Table
from elman.report.comparison.draw_components import gains
from elman.report.comparison.draw_ladder import over_size
from elman.report.comparison.draw_tuned import bars, marker, over_setting, parallel
from elman.report.comparison.frame import Frame, cross, half_width, mark, short
from elman.report.comparison.ink import (
    COLORS,
    DARK_SHADES,
    DASHES,
    HATCH,
    SHADES,
    Box,
    Circle,
    Drawing,
    Group,
    Path,
    Places,
    Shape,
    Text,
    svg,
)
from elman.report.comparison.pictures import (
    Bars,
    Curve,
    Dot,
    Gains,
    HeatMap,
    Lines,
    OverNames,
    OverNumbers,
    OverSetting,
    OverSize,
    Parallel,
    Picture,
    Point,
    Scatter,
)
from elman.report.comparison.tasks import AT_CHANCE, NO_RESULT, NOT_SOLVED, SOLVED, TaskCell, Tasks

_LONGEST_ENTRY, _MOST_NAME = 60, 18
_LABEL_HEIGHT = 17
# Of more curves the lines are thin, and of more points only those on a front have names.
_MANY = 12
_LINE_HEIGHT, _DOT_BELOW = 38, 27
# Room in a cell of a heat map that its number takes, and in its margin that a character takes.
_NUMBER_WIDTH, _SIDE = 40, 9.2
# Of the grid of tasks: a cell, its margin, a dot, a letter of a name, and the slope of names.
_WIDE, _HIGH, _MARGIN, _RADIUS = 76, 34, 8, 3.4
_LETTER, _SLOPE = 6.7, 35
_TASK = {SOLVED: "solved", NOT_SOLVED: "unsolved", AT_CHANCE: "chance", NO_RESULT: "none"}
# Of a legend below a figure: the height of a line, the width of a sample and of a letter.
_ENTRY, _SAMPLE, _ENTRY_LETTER = 20, 26, 8.6


def draw(picture: Picture) -> Drawing:
    """Return a picture as shapes."""
    match picture:
        case Lines():
            return _lines(picture)
        case Scatter():
            return _scatter(picture)
        case HeatMap():
            return _heat_map(picture)
        case OverNames():
            return _over_names(picture)
        case OverSetting():
            return over_setting(picture)
        case Parallel():
            return parallel(picture)
        case Bars():
            return bars(picture)
        case Gains():
            return gains(picture)
        case OverSize():
            return over_size(picture)
    return _over_numbers(picture)


def _lines(lines: Lines) -> Drawing:
    """Return a plot of curves, cut off at the edge of the axes."""
    frame, thin = Frame(lines.x, lines.y), "thin" if len(lines.curves) > _MANY else ""
    inside: list[Shape] = []
    if lines.floor:
        places = [(frame.x(x), frame.y(y)) for x, y in lines.floor]
        inside.append(Path([places], "floor", "polyline"))
    inside += [_curve(frame, curve, thin, dotted=lines.dotted) for curve in lines.curves]
    return frame.drawing(lines, [Group(inside, clipped=True)])


def _curve(frame: Frame, curve: Curve, thin: str, *, dotted: bool) -> Group:
    xs = [frame.x(value) for value in curve.x.tolist()]
    ys = [frame.y(value) for value in curve.y.tolist()]
    places = list(zip(xs, ys, strict=True))
    shapes: list[Shape] = []
    if curve.band is not None:
        lows, highs = ([frame.y(value) for value in side.tolist()] for side in curve.band)
        around = [*zip(xs, lows, strict=True), *zip(xs[::-1], highs[::-1], strict=True)]
        shapes.append(Path([around], element="polygon"))
    shapes.append(Path([places], thin, "polyline", curve.full_name))
    dots = [(x, y, 1.8) for x, y in places] if dotted else []
    if curve.ok:
        dots = [*dots[:-1], (*places[-1], 2.4)]
    shapes += [Circle(*dot) for dot in dots]
    shapes += [] if curve.ok else [cross(*places[-1])]
    shapes += mark(*places[-1], curve.marks)
    return Group(shapes, "line", curve.row, curve.style)


def _scatter(scatter: Scatter) -> Drawing:
    """Return a plot of points with their ranges, and a line through each front.

    With more than twelve points, only those on a front have their names beside them. The others
    show theirs when a reader picks them.
    """
    frame = Frame(scatter.x, scatter.y)
    shapes: list[Shape] = [
        Path([[(frame.x(point.x), frame.y(point.y)) for point in front]], "front", "polyline")
        for front in scatter.fronts
        if len(front) > 1
    ]
    on_fronts = [point for front in scatter.fronts for point in front]
    named = scatter.points if len(scatter.points) <= _MANY else on_fronts
    heights = _label_heights(frame, named)
    shapes += [
        _point(frame, point, heights.get(point.row), scatter.measure) for point in scatter.points
    ]
    return frame.drawing(scatter, shapes)


def _point(frame: Frame, point: Point, height: float | None, measure: str) -> Group:
    """Return one point; without a height its label is hidden until a reader picks it."""
    x, y = frame.x(point.x), frame.y(point.y)
    left, right = map(frame.x, point.x_range)
    low, high = map(frame.y, point.y_range)
    on_left = frame.x_axis.share(point.x) > 0.5
    text = f"{point.full_name}: {point.x:,.0f} {frame.x_axis.label}, {measure} {point.y:.4f}"
    label = Text(
        x - 8 if on_left else x + 8,
        (y if height is None else height) - 6,
        f"{short(point.name)}{' *' if point.marks else ''}",
        "quiet" if height is None else "",
        "end" if on_left else "start",
    )
    shapes = [
        Path([[(left, y), (right, y)], [(x, low), (x, high)]]),
        *mark(x, y, point.marks),
        Circle(x, y, 4, "" if point.known else "hollow", point.full_name, text),
        label,
    ]
    return Group(shapes, "point", point.row, point.style)


def _label_heights(frame: Frame, points: Sequence[Point]) -> dict[int, float]:
    """Return a height for each label, moved down where two would overlap, while there is room."""
    heights: dict[int, float] = {}
    last = -math.inf
    places = [(point.row, frame.y(point.y)) for point in points]
    for row, place in sorted(places, key=lambda pair: pair[1]):
        moved = max(place, last + _LABEL_HEIGHT)
        if moved > frame.height - frame.bottom + 6:
            break
        heights[row] = last = moved
    return heights


def _over_numbers(picture: OverNumbers) -> Drawing:
    """Return the loss over a key whose values are numbers."""
    frame, top = Frame(picture.x, picture.y), picture.y.high
    path = [(frame.x(x), frame.y(min(y, top))) for x, y in picture.path]
    shapes: list[Shape] = [Path([path], "through", "polyline")]
    free = 0.0
    for dot in sorted(picture.dots, key=lambda dot: dot.at):
        place = frame.x(dot.at[0])
        if dot.loss is None:
            half = half_width(dot.failed or dot.waits)
            label = _words(dot, place, frame.top + 26, "middle", best=True)
            label, free = (label, place + half) if place - half > free else ([], free)
            shapes.append(_dot(dot, place, frame.top + 8, [], label))
            continue
        height = frame.y(min(dot.loss, top))
        low, high = (frame.y(min(value, top)) for value in dot.ends)
        on_left = frame.x_axis.share(dot.at[0]) > 0.5
        side, anchor = (place - 12, "end") if on_left else (place + 12, "start")
        label = _words(dot, side, height - 9, anchor, best=True)
        shapes.append(_dot(dot, place, height, [(place, low), (place, high)], label))
    return frame.drawing(picture, shapes)


def _over_names(picture: OverNames) -> Drawing:
    """Return the loss of each of some names, each below its name."""
    unruled = replace(picture.y, own_ticks=((picture.y.low, ""),))  # each name has its own rule
    height = 30 + 48 + _LINE_HEIGHT * len(picture.y.own_ticks)
    frame = Frame(picture.x, unruled, height=height, left=14)
    end = frame.width - frame.right
    shapes: list[Shape] = []
    for place, name in picture.y.own_ticks:
        at = frame.top + _LINE_HEIGHT * place
        shapes.append(Text(frame.left, at + 13, short(name), "name"))
        rule = [(float(frame.left), at + _DOT_BELOW), (float(end), at + _DOT_BELOW)]
        shapes.append(Path([rule], "rule"))
    labeled: set[float] = set()
    for dot in sorted(picture.dots, key=lambda dot: (dot.loss is None, dot.loss or 0.0)):
        top = frame.top + _LINE_HEIGHT * dot.at[0]
        down = top + _DOT_BELOW
        # Of several rows with one name, the best has its loss in words.
        label = [] if dot.at[0] in labeled else _words(dot, end, top + 13, "end")
        labeled.add(dot.at[0])
        if dot.loss is None:
            shapes.append(_dot(dot, frame.left + 6, down, [], label))
            continue
        place = frame.x(min(dot.loss, picture.x.high))
        low, high = (frame.x(min(value, picture.x.high)) for value in dot.ends)
        shapes.append(_dot(dot, place, down, [(low, down), (high, down)], label))
    return frame.drawing(picture, shapes)


def _words(dot: Dot, x: float, y: float, anchor: str, *, best: bool = False) -> list[Shape]:
    """Return the loss of a row, or how it failed, as text; ``best``: only that of the best row."""
    if best and not dot.best and dot.loss is not None:
        return []
    words, css = dot.failed or dot.waits, "bad" if dot.failed else "wait"
    if dot.loss is not None:
        words, css = f"{'best: ' * dot.best}{dot.loss:.4f}", "best" if dot.best else "loss"
    return [Text(x, y, short(words), css, anchor)]


def _dot(dot: Dot, x: float, y: float, bar: Places, label: Sequence[Shape]) -> Group:
    """Return one row: a dot with its range, or a cross if nothing ended well, and its label."""
    shapes: list[Shape] = [Path([bar])] if bar else []
    shapes += [Circle(x, y, 8, "ring")] if dot.best else []
    shapes += mark(x, y, dot.marks)
    if dot.loss is None:
        sign = cross(x, y) if dot.failed else Circle(x, y, 3, "hollow")
        shapes.append(Group([sign], "bad", tip=dot.summary, at=(x, y)))
    else:
        shapes.append(Circle(x, y, 4, tip=dot.summary))
        # Some of its runs failed: a small cross beside the mean of the others.
        shapes += [Group([cross(x + 11, y)], "bad")] if dot.failed else []
    return Group([*shapes, *label], "point", dot.row, dot.style)


def _heat_map(picture: HeatMap) -> Drawing:
    """Return a cell for each pair of values; what failed is hatched and has its word."""
    longest = max(len(short(name, _MOST_NAME)) for _, name in picture.y.own_ticks)
    left = int(14 + _SIDE * longest)
    across = (580 - left - 18) / len(picture.x.own_ticks)
    down = min(44.0, max(18.0, across))
    x, y = (_short_names(axis) for axis in (picture.x, picture.y))
    frame = Frame(x, y, height=int(30 + 48 + down * len(picture.y.own_ticks)), left=left)
    best_last = sorted(picture.dots, key=lambda dot: dot.best)
    return frame.drawing(picture, [_cell(picture, dot, frame, across, down) for dot in best_last])


def _short_names(axis: Axis) -> Axis:
    return replace(
        axis, own_ticks=tuple((at, short(name, _MOST_NAME)) for at, name in axis.own_ticks)
    )


def _cell(picture: HeatMap, dot: Dot, frame: Frame, across: float, down: float) -> Group:
    x, y = frame.x(dot.at[0]), frame.y(dot.at[1])
    fill, own, css, words = HATCH, "", "on-none", dot.failed
    if not dot.failed:
        fill, own, css, words = "", "none", "on-wait", dot.waits
    if dot.loss is not None:
        shade = min(len(SHADES) - 1, int(picture.shade(dot.loss) * len(SHADES)))
        fill, own, css = SHADES[shade], "", "on-dark" if shade < DARK_SHADES else "on-light"
        words = f"{dot.loss:.3f}{'*' if dot.marks or dot.failed else ''}"
    shapes: list[Shape] = [Box(x - across / 2, y - down / 2, across, down, fill, own)]
    if across >= _NUMBER_WIDTH or dot.best:
        shown = short(words, max(3, int(across / 6.5)))
        shapes.append(Text(x, y + 4, shown, css, "middle"))
    kind = "cell best" if dot.best else "cell"
    return Group(shapes, kind, dot.row, tip=dot.summary, at=(x, y))


def draw_tasks(tasks: Tasks) -> Drawing:
    """Return the grid of models and tasks: a dot's place is its accuracy, 0 left and 1 right."""
    left, top, right = _room(tasks)
    width = left + _WIDE * len(tasks.names) + right
    height = top + _HIGH * len(tasks.models) + 8
    shapes: list[Shape] = [
        Text(left + _WIDE * column + 14, top - 8, task, "name", slope=_SLOPE)
        for column, task in enumerate(tasks.names)
    ]
    for line, model in enumerate(tasks.models):
        y = top + _HIGH * line
        shapes.append(Text(left - 8, y + _HIGH / 2 + 4, model, "name", "end"))
        for column, task in enumerate(tasks.names):
            cell = tasks.of(model, task)
            if cell is not None:
                shapes.append(_task(cell, left + _WIDE * column, y))
    return Drawing("tasks", "models and tasks", width, height, shapes, css="tasks", enlarged=1.0)


def _room(tasks: Tasks) -> tuple[int, int, int]:
    """Return the units that the names need: left of the cells, above and right of them."""
    model = max(map(len, tasks.models)) * _LETTER
    task = max(map(len, tasks.names)) * _LETTER
    slope = math.radians(_SLOPE)
    across, up = task * math.cos(slope), task * math.sin(slope)
    return round(model) + 16, round(up) + 26, max(8, round(across) + 22 - _WIDE)


def _task(cell: TaskCell, x: float, y: float) -> Group:
    inside = _WIDE - 2 * _MARGIN - 4
    zero, low = x + 2 + _MARGIN, y + _HIGH
    chance = zero + inside * cell.chance
    shapes: list[Shape] = [
        Box(x + 2, y + 2, _WIDE - 4, _HIGH - 4, round=3),
        Path([[(chance, low - 15), (chance, low - 5)]]),
        Text(x + _WIDE / 2, y + 14, cell.verdict, anchor="middle"),
        *(Circle(zero + inside * seed, low - 10, _RADIUS) for seed in cell.seeds),
    ]
    tip = f"{cell.model}, {cell.task}: {cell.summary}"
    return Group(shapes, f"task {_TASK[cell.verdict]}", cell.number, tip=tip)


def with_legend(drawing: Drawing, picture: Picture) -> Drawing:
    """Return a picture with the names of its curves or arms below, as a figure alone needs them.

    Of more rows than line styles there is no legend.
    """
    entries = _named(picture)
    if not entries or len(entries) > COLORS * DASHES:
        return drawing
    names = {row: short(name, _LONGEST_ENTRY) for row, (name, _) in sorted(entries.items())}
    wide = 2 * _SAMPLE + _ENTRY_LETTER * max(map(len, names.values()), default=0)
    across = max(1, int(drawing.width / wide))
    shapes: list[Shape] = []
    for at, (row, name) in enumerate(names.items()):
        x, y = wide * (at % across) + 8, drawing.height + _ENTRY * (at // across) + 6
        style = entries[row][1]
        line: Shape = Path([[(x, y), (x + _SAMPLE, y)]], element="polyline")
        inside = [line, marker(style, x + _SAMPLE / 2, y)]
        several = isinstance(picture, OverSetting | OverSize)
        shapes.append(
            Group(inside if several else [line], "trial" if several else "line", row, style)
        )
        shapes.append(Text(x + _SAMPLE + 6, y + 4, name, "name"))
    height = drawing.height + _ENTRY * math.ceil(len(names) / across) + 4
    return replace(drawing, height=height, shapes=[*drawing.shapes, *shapes])


def _named(picture: Picture) -> dict[int, tuple[str, int]]:
    """Return the name and the line style of each row that a picture tells by its color alone."""
    match picture:
        case Lines():
            return {one.row: (one.full_name, one.style) for one in reversed(picture.curves)}
        case OverSetting():
            return {one.row: (one.name, one.style) for one in picture.arms}
        case OverSize():
            return {one.row: (one.name, one.style) for one in picture.families}
        case Bars():
            return {
                one.row: (one.name, one.style) for _, of_key in picture.groups for one in of_key
            }
    return {}


@dataclass(frozen=True)
class Plot:
    """One plot.

    Args:
        picture: What it shows.
        caption: What the plot shows, and how.
        numbers: The same as a table; None if it would be too long.
    """

    picture: Picture
    caption: str
    numbers: Table | None

    @property
    def title(self) -> str:
        """Its heading."""
        return self.picture.title

    @property
    def shows_keys(self) -> bool:
        """Whether it shows what was swept."""
        return isinstance(self.picture, HeatMap | OverNames | OverNumbers)

    @property
    def svg(self) -> str:
        """The picture as SVG for the page."""
        return svg(draw(self.picture))

    @property
    def figure(self) -> Drawing:
        """The picture for a paper: curves have their names below."""
        return with_legend(draw(self.picture), self.picture)
