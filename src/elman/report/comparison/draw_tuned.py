"""Draws the pictures of a tuned sweep: scores over a key, parallel coordinates, and shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from elman.base.exit_status import RunStatus
from elman.report.comparison.axes import Axis
from elman.report.comparison.frame import LETTER, Frame, half_width, short
from elman.report.comparison.ink import (
    COLORS,
    Box,
    Circle,
    Drawing,
    Group,
    Path,
    Shape,
    Text,
)
from elman.report.comparison.pictures import ArmTrials, Bars, OverSetting, Parallel, Strand, Tried

ENDS = {
    RunStatus.NAN: "diverged (nan)",
    RunStatus.OOM: "out of memory (oom)",
    RunStatus.TIMEOUT: "timeout",
    RunStatus.REFUSED: "refused",
    RunStatus.CRASH: "crash",
}
"""What the marks of trials without a score mean, by status."""
# Outlines around (0, 0), in half widths of a sign.
_SIGNS: dict[str, Sequence[Sequence[tuple[float, float]]]] = {
    RunStatus.NAN: [[(-1, -1), (1, 1)], [(1, -1), (-1, 1)]],
    RunStatus.OOM: [[(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)], [(-1, 0), (1, 0)]],
    RunStatus.TIMEOUT: [[(-1, -1), (1, -1), (-1, 1), (1, 1), (-1, -1)]],
    RunStatus.REFUSED: [[(-1, 0), (1, 0)]],
    RunStatus.CRASH: [[(-1.2, 0), (1.2, 0)], [(0, -1.2), (0, 1.2)]],
}
# Outlines of the markers of arms; an arm without one has a circle.
_OUTLINES: Sequence[Sequence[tuple[float, float]]] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
    ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
)
_DOT, _CONFIRMED, _SIGN = 3.4, 5.0, 3.8
# Of the strip of failed trials: a line of it. Of the windows: a bar, and from one to the next.
_FAILED_LINE, _WINDOW, _NEXT_WINDOW = 12, 5, 9
_TALL, _BESIDE, _LEFT = 262, 6, 72
# The windows of more arms are not shaded below their curves: the colors would mix.
_MOST_SHADED = 4
_ENTRY, _SAMPLE = 20, 18
_KEY, _BAR, _NEXT_BAR = 20, 13, 18
_BETWEEN_TICKS = 22

Sign = Callable[[float, float], Sequence[Shape]]


def marker(style: int, x: float, y: float, radius: float = _DOT, css: str = "") -> Shape:
    """Return the marker of an arm: arms of one color have different ones."""
    outline = _OUTLINES[(style + style // COLORS) % len(_OUTLINES)]
    if not outline:
        return Circle(x, y, radius, css)
    corners = [(x + radius * right, y + radius * down) for right, down in outline]
    return Path([corners], css, "polygon")


def over_setting(picture: OverSetting) -> Drawing:
    """Return the scores of every arm's trials over a key, its window, and what failed above."""
    failed, lines = _failed(picture)
    windows = [arm for arm in picture.arms if arm.window is not None]
    strip = 10 + _FAILED_LINE * lines if failed else 0
    lanes = 8 + _NEXT_WINDOW * len(windows) if windows else 0
    floor = picture.y.low
    frame = Frame(
        picture.x,
        _with_lanes(picture.y, lanes),
        height=340 + strip + lanes,
        left=_LEFT,
        top=30 + strip,
    )
    shapes = [*_grown(picture, frame), *_published(picture, frame, frame.y(floor))]
    shapes += _windows(windows, frame, floor, shaded=picture.joined)
    shapes += [_arm(arm, frame, picture, failed.get(number, [])) for number, arm in _each(picture)]
    shapes += _edges(picture, frame)
    if strip:
        shapes.append(_beside_axis(frame, "failed", frame.top - strip / 2 + 1))
    drawing = frame.drawing(picture, shapes)
    return with_entries(drawing, _meanings(picture))


def _each(picture: OverSetting) -> list[tuple[int, ArmTrials]]:
    return list(enumerate(picture.arms))


def _with_lanes(y: Axis, lanes: float) -> Axis:
    """Return an axis that reaches lower by some units of the picture; its ticks stay."""
    span = y.high - y.low
    return replace(y, low=y.low - span * lanes / _TALL, own_ticks=tuple(y.shown_ticks))


def _beside_axis(frame: Frame, text: str, y: float) -> Shape:
    return Group([Text(frame.left - 6, y + 4, text, anchor="end")], "grid")


def _failed(picture: OverSetting) -> tuple[dict[int, list[tuple[Tried, int]]], int]:
    """Return by arm its trials without a score, each with its line of the strip, and the lines.

    Trials of several arms at one value stand above each other.
    """
    frame = Frame(picture.x, picture.y, left=_LEFT)
    taken: list[list[float]] = []
    by_arm: dict[int, list[tuple[Tried, int]]] = {}
    for number, arm in _each(picture):
        for one in arm.trials:
            if one.score is None:
                place = frame.x(one.at)
                free = (
                    at
                    for at, places in enumerate(taken)
                    if all(abs(place - other) > 3 * _SIGN for other in places)
                )
                line = next(free, len(taken))
                if line == len(taken):
                    taken.append([])
                taken[line].append(place)
                by_arm.setdefault(number, []).append((one, line))
    return by_arm, len(taken)


def _grown(picture: OverSetting, frame: Frame) -> list[Shape]:
    """Return the parts of the range by which it grew."""
    bottom = frame.height - frame.bottom
    shapes: list[Shape] = []
    for low, high in picture.grown:
        left, right = sorted((frame.x(low), frame.x(high)))
        shapes.append(Box(left, frame.top, right - left, bottom - frame.top, css="grown"))
        if right - left > 2 * half_width("grown"):
            text = Text((left + right) / 2, frame.top + 14, "grown", "note", "middle")
            shapes.append(text)
    return shapes


def _published(picture: OverSetting, frame: Frame, bottom: float) -> list[Shape]:
    """Return a line at the published value: one for all arms if it is the same for all.

    Its name stands at the bottom of the curves: they are high where they begin.
    """
    places = {arm.row: arm.published for arm in picture.arms if arm.published is not None}
    ends = frame.top, frame.height - frame.bottom
    shapes: list[Shape] = []
    for arm in picture.arms:
        if arm.row not in places or not 0 <= picture.x.share(places[arm.row] or 0.0) <= 1:
            continue
        x = frame.x(places[arm.row] or 0.0)
        line = Path([[(x, ends[0]), (x, ends[1])]], "published")
        left = picture.x.share(places[arm.row] or 0.0) > 0.5
        side = (x - _BESIDE, "end") if left else (x + _BESIDE, "start")
        text = Text(side[0], bottom - 5, "published", "note", side[1])
        if len(set(places.values())) == 1:
            return [line, text]
        shapes.append(Group([line], "trial", arm.row, arm.style, f"{arm.name}: published value"))
    return shapes


def _windows(arms: Sequence[ArmTrials], frame: Frame, floor: float, *, shaded: bool) -> list[Shape]:
    """Return each arm's window as a bar below the curves; of few arms it is shaded, too."""
    bottom, low = frame.y(floor), frame.height - frame.bottom
    shapes: list[Shape] = []
    for number, arm in enumerate(arms):
        assert arm.window is not None
        left, right = frame.x(arm.window.low) - 3, frame.x(arm.window.high) + 3
        y = bottom + 6 + _NEXT_WINDOW * number
        inside: list[Shape] = [_reach(left, right, y, arm)]
        if shaded and len(arms) <= _MOST_SHADED:
            inside.insert(0, _shade(arm, frame, bottom))
        shapes.append(Group(inside, "trial", arm.row, arm.style))
    if arms:
        ends = [(float(frame.left), bottom), (float(frame.width - frame.right), bottom)]
        shapes.append(Path([ends], "rule"))
        shapes.append(_beside_axis(frame, "window", (bottom + low) / 2))
    return shapes


def _reach(left: float, right: float, y: float, arm: ArmTrials) -> Group:
    """Return the bar of a window; it is pointed where the window may reach farther."""
    assert arm.window is not None
    middle, low = y + _WINDOW / 2, y + _WINDOW
    before = [(left - 7, middle)] if arm.window.open_low else []
    after = [(right + 7, middle)] if arm.window.open_high else []
    corners = [(left, low), *before, (left, y), (right, y), *after, (right, low)]
    bar = Path([corners], "reach", "polygon")
    return Group([bar], tip=arm.window.tip, at=((left + right) / 2, middle))


def _shade(arm: ArmTrials, frame: Frame, bottom: float) -> Shape:
    """Return the area below the curve of an arm, within its window."""
    assert arm.window is not None
    low, high = arm.window.low, arm.window.high
    places = [
        (frame.x(one.at), _height(frame, one.score))
        for one in arm.trials
        if one.score is not None and low <= one.at <= high
    ]
    if len({x for x, _ in places}) == 1:
        x, y = places[0][0], min(y for _, y in places)
        places = [(x - 6, y), (x + 6, y)]
    corners = [(places[0][0], bottom), *places, (places[-1][0], bottom)]
    return Path([corners], "shade", "polygon")


def _height(frame: Frame, score: float) -> float:
    """Return the vertical place of a score; one beyond the axis is at its edge."""
    axis = frame.y_axis
    return frame.y(min(max(score, axis.low), axis.high))


def _arm(
    arm: ArmTrials, frame: Frame, picture: OverSetting, failed: Sequence[tuple[Tried, int]]
) -> Group:
    scored = [one for one in arm.trials if one.score is not None]
    places = [(frame.x(one.at), _height(frame, one.score or 0.0)) for one in scored]
    shapes: list[Shape] = []
    if picture.joined and len(places) > 1:
        shapes.append(Path([places], element="polyline"))
    for one, (x, y) in zip(scored, places, strict=True):
        ring = [Circle(x, y, 8, "ring")] if one.best else []
        shapes.append(Group([*ring, marker(arm.style, x, y)], tip=one.tip, at=(x, y)))
    for one, line in failed:
        x, y = frame.x(one.at), frame.top - 10 - _FAILED_LINE * line
        shapes.append(Group([sign(one.status, x, y)], tip=one.tip, at=(x, y)))
    shapes += [_confirmed(one, arm.style, frame) for one in arm.confirmed]
    return Group(shapes, "trial", arm.row, arm.style)


def _confirmed(one: Tried, style: int, frame: Frame) -> Group:
    """Return a setting at full budget: a hollow marker with the range of its seeds."""
    x, y = frame.x(one.at), _height(frame, one.score or 0.0)
    low, high = (_height(frame, end) for end in one.ends)
    shapes: list[Shape] = [Path([[(x, low), (x, high)]])] if low != high else []
    shapes.append(marker(style, x, y, _CONFIRMED, "hollow"))
    return Group(shapes, tip=one.tip, at=(x, y))


def sign(status: str, x: float, y: float, half: float = _SIGN) -> Path:
    """Return the mark of a trial without a score, by how it ended."""
    strokes = _SIGNS.get(status, _SIGNS[RunStatus.CRASH])
    return Path([[(x + half * a, y + half * b) for a, b in one] for one in strokes], "sign")


def _edges(picture: OverSetting, frame: Frame) -> list[Shape]:
    """Return the words of best values that are at an edge, moved down where two would overlap."""
    shapes: list[Shape] = []
    last = -1e9
    pairs = [(arm, one) for arm in picture.arms if arm.edge for one in arm.trials if one.best]
    for arm, one in sorted(pairs, key=lambda pair: _height(frame, pair[1].score or 0.0)):
        x = frame.x(one.at)
        y = max(_height(frame, one.score or 0.0) - 12, last + 17)
        last = y
        left = picture.x.share(one.at) > 0.5
        side = (x - 10, "end") if left else (x + 10, "start")
        text = Text(side[0], y, arm.edge, "edge", side[1])
        shapes.append(Group([text], "trial", arm.row, arm.style))
    return shapes


def _meanings(picture: OverSetting) -> list[tuple[Sign, str]]:
    """Return the signs of a picture with their meaning, those alone that it has."""
    trials = [one for arm in picture.arms for one in arm.trials]
    entries: list[tuple[Sign, str]] = [(dot_sign(""), "trial")]
    if any(one.best for one in trials):
        entries.append((lambda x, y: [Circle(x, y, 6.5, "ring"), Circle(x, y, 2.6)], "best trial"))
    if any(arm.confirmed for arm in picture.arms):
        entries.append((dot_sign("hollow"), "full budget, mean of seeds"))
    if len({arm.published for arm in picture.arms} - {None}) > 1:
        entries.append((_published_sign, "published value"))
    ends = dict.fromkeys(one.status for one in trials if one.score is None)
    for status in sorted(ends, key=list(_SIGNS).index if ends.keys() <= _SIGNS.keys() else str):
        entries.append((_status_sign(status), ENDS.get(RunStatus(status), status)))
    return entries


def _published_sign(x: float, y: float) -> Sequence[Shape]:
    return [Path([[(x, y - 7), (x, y + 7)]], "published")]


def dot_sign(css: str) -> Sign:
    """Return the sign of a marker, filled or hollow, for :func:`with_entries`."""
    return lambda x, y: [Circle(x, y, _CONFIRMED - 0.6 if css else _DOT, css)]


def _status_sign(status: str) -> Sign:
    return lambda x, y: [sign(status, x, y)]


def with_entries(drawing: Drawing, entries: Sequence[tuple[Sign, str]]) -> Drawing:
    """Return a drawing with the meaning of its signs below."""
    shapes: list[Shape] = []
    x, y = 8.0, drawing.height + 8
    for made, text in entries:
        wide = _SAMPLE + LETTER * len(text) + 14
        if x > 8 and x + wide > drawing.width + 14:
            x, y = 8.0, y + _ENTRY
        shapes.append(Group(made(x + 6, y), "sign"))
        shapes.append(Text(x + _SAMPLE, y + 4, text, "note"))
        x += wide
    height = y + 10
    return replace(drawing, height=height, shapes=[*drawing.shapes, *shapes])


def parallel(picture: Parallel) -> Drawing:
    """Return the trials of one arm as lines through an axis for each key."""
    last = len(picture.axes) - 1
    failed = any(strand.places[-1] is None for strand in picture.strands)
    above, below = (26, 0) if failed and not picture.upwards else (0, 26 if failed else 0)
    frame = Frame(
        Axis("", 0, last),
        Axis("", 0, 1),
        height=346 + above + below,
        left=70,
        right=70,
        top=56 + above,
        bottom=20 + below,
    )
    slot = float(frame.top - 18 if above else frame.height - frame.bottom + 18)
    order = {"best": 3, "near": 2, "far": 1}
    strands = sorted(picture.strands, key=lambda strand: order.get(strand.kind, 0))
    lines = [_strand(picture, strand, frame, slot) for strand in strands]
    shapes: list[Shape] = [Group(lines, "strand", picture.row, picture.style)]
    for number, axis in enumerate(picture.axes):
        shapes.append(_upright(axis, number, last, frame))
    if failed:
        shapes.append(Group([Text(frame.x(last) + 12, slot + 4, "failed")], "grid"))
    drawing = Drawing(
        picture.name,
        picture.title,
        frame.width,
        frame.height,
        shapes,
        (frame.left, frame.width - frame.right, frame.top, frame.height - frame.bottom),
        {
            "data-ends": "0 1 0 1",
            "data-box": f"{frame.left} {frame.width - frame.right} {frame.top} "
            f"{frame.height - frame.bottom}",
            "data-x": "",
            "data-y": "",
        },
    )
    return drawing


def _strand(picture: Parallel, strand: Strand, frame: Frame, slot: float) -> Group:
    kind = strand.kind if strand.places[-1] is not None else "failed"
    places = [
        (
            frame.x(number),
            slot if at is None else frame.y(axis.share(min(max(at, axis.low), axis.high))),
        )
        for number, (at, axis) in enumerate(zip(strand.places, picture.axes, strict=True))
    ]
    x, y = places[-1]
    end = sign(strand.kind, x, y) if kind == "failed" else Circle(x, y, 3, kind)
    return Group([Path([places], kind, "polyline"), end], tip=strand.tip, at=(x, y))


def _upright(axis: Axis, number: int, last: int, frame: Frame) -> Group:
    """Return an axis that stands upright, with its name above and its ticks beside it."""
    x, low = frame.x(number), frame.height - frame.bottom
    shapes: list[Shape] = [Path([[(x, frame.top), (x, low)]])]
    anchor = "start" if number == 0 else "end" if number == last else "middle"
    at = 0.0 if number == 0 else float(frame.width) if number == last else x
    room = int(2 * frame.x(1) / LETTER) - 8 if last > 1 else 60
    text = short(axis.label, max(12, room))
    shapes.append(Text(at, 15 + 20 * (number % 2), text, anchor=anchor))
    end = 1e9
    for tick, text in axis.shown_ticks:
        y = frame.y(axis.share(tick))
        if frame.top - 1 <= y <= low + 1 and end - y >= _BETWEEN_TICKS:
            end = y
            side = (x + 8, "start") if number == last else (x - 8, "end")
            shapes.append(Path([[(x - 3, y), (x + 3, y)]]))
            shapes.append(Text(side[0], y + 4, short(text, 9), "tick", side[1]))
    return Group(shapes, "upright")


def bars(picture: Bars) -> Drawing:
    """Return shares as bars, below the name of each key."""
    count = sum(len(group) for _, group in picture.groups)
    height = 30 + 48 + count * _NEXT_BAR + len(picture.groups) * (_KEY + 6)
    frame = Frame(picture.x, Axis("", 0, 1, own_ticks=((0, ""),)), height=height, left=24)
    y, zero = float(frame.top), frame.x(0)
    shapes: list[Shape] = []
    for key, group in picture.groups:
        shapes.append(Text(zero, y + 13, key, "name"))
        y += _KEY
        for bar in group:
            end = frame.x(bar.share)
            text = f"{100 * bar.share:.0f} %"
            box = Box(zero, y, end - zero, _BAR)
            inside: list[Shape] = [box, Text(end + 5, y + 11, text)]
            tip = f"{bar.name}: {key} {text}"
            where = (end, y + _BAR / 2)
            shapes.append(Group([Group(inside, tip=tip, at=where)], "share", bar.row, bar.style))
            y += _NEXT_BAR
        y += 6
    return frame.drawing(picture, shapes)
