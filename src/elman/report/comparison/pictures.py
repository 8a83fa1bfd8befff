"""What pictures show, before they are drawn: their axes, points and curves, and what was swept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from elman.base.exit_status import RunStatus
from elman.report.comparison.conditions import settings
from elman.report.comparison.curves import Curve
from elman.report.comparison.deciding import LOSS_HEIGHT, Height
from elman.report.comparison.rows import Row
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED

_MOST_VALUES = 24


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
        style: The line style of its row.
    """

    row: int
    name: str
    x: float
    y: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    known: bool = True
    marks: tuple[str, ...] = ()
    style: int = 0

    @property
    def told(self) -> str:
        """Return its name with its marks."""
        marks = [*self.marks, *([] if self.known else ["n=1"])]
        return f"{self.name} ({', '.join(marks)})" if marks else self.name


@dataclass(frozen=True)
class Dot:
    """One row in a picture of what was swept.

    Args:
        row: Its number in the table.
        name: What it is called.
        at: The place of its value on the axis of the key; in a heat map, of both keys.
        loss: Its mean over seeds; None if no run counts.
        ends: The lowest and the highest of its seeds.
        n: How many seeds.
        marks: The marks of its runs, as in the table.
        failed: How its other runs ended, as in ``2 nan``; empty if none failed.
        waits: The runs that have not ended, as in ``2 running``.
        best: Whether it is the best of the largest set of comparable rows.
        style: The line style of its row.
        measure: What ``loss`` is: the loss, or val bpb.
    """

    row: int
    name: str
    at: tuple[float, ...]
    loss: float | None
    ends: tuple[float, float] = (0.0, 0.0)
    n: int = 0
    marks: tuple[str, ...] = ()
    failed: str = ""
    waits: str = ""
    best: bool = False
    style: int = 0
    measure: str = "loss"

    @property
    def told(self) -> str:
        """Everything about it in one line."""
        parts = []
        if self.loss is not None:
            spread = f", {self.ends[0]:.4f} to {self.ends[1]:.4f}" if self.n > 1 else ""
            parts.append(f"{self.measure} {self.loss:.4f}{spread}, n={self.n}")
        parts += filter(None, (self.failed, self.waits))
        parts += [*self.marks, *(["the best"] if self.best else [])]
        return f"{self.name}: {'; '.join(parts)}"


@dataclass(frozen=True)
class Lines:
    """Curves over an axis.

    Args:
        name: Its name in files.
        title: Its heading.
        curves: The curves.
        x: The axis across.
        y: The axis upwards.
        dotted: Their points are few, and each is drawn.
        floor: Places and heights of a dashed line that the curves are read against.
    """

    name: str
    title: str
    curves: Sequence[Curve]
    x: Axis
    y: Axis
    dotted: bool = False
    floor: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Scatter:
    """Points with their ranges, and a line through each front; ``measure``: what is ``y``."""

    name: str
    title: str
    points: Sequence[Point]
    fronts: Sequence[Sequence[Point]]
    x: Axis
    y: Axis
    measure: str = "loss"


@dataclass(frozen=True)
class OverNumbers:
    """Loss over a key whose values are numbers, with a line through the best at each value."""

    name: str
    title: str
    dots: Sequence[Dot]
    x: Axis
    y: Axis

    @property
    def path(self) -> list[tuple[float, float]]:
        """The best loss at each value; empty if the values are too many for a line to say much."""
        best: dict[float, float] = {}
        for dot in self.dots:
            if dot.loss is not None:
                best[dot.at[0]] = min(dot.loss, best.get(dot.at[0], dot.loss))
        return sorted(best.items()) if len(best) <= _MOST_VALUES else []


@dataclass(frozen=True)
class OverNames:
    """Loss, along the horizontal axis, of each of some names from top to bottom."""

    name: str
    title: str
    dots: Sequence[Dot]
    x: Axis
    y: Axis


@dataclass(frozen=True)
class HeatMap:
    """Loss as a colour over two keys; above ``high`` all colours are the same."""

    name: str
    title: str
    dots: Sequence[Dot]
    x: Axis
    y: Axis
    low: float
    high: float

    def shade(self, loss: float) -> float:
        """Return the place of a loss on the scale of colours: 0 for the best, 1 for the worst."""
        if self.high <= self.low:
            return 0.0
        return min(1.0, max(0.0, (loss - self.low) / (self.high - self.low)))


Picture = Lines | Scatter | OverNumbers | OverNames | HeatMap

_TICKS = 6
# Values over at least this range may be on a logarithmic axis.
_LOG_RANGE = 7.9


@dataclass(frozen=True)
class Axis:
    """One axis.

    Args:
        label: What it measures, with its unit.
        low: Where it begins.
        high: Where it ends.
        log: Whether it is logarithmic; ``low`` is above 0 then.
        given: Ticks with their texts, instead of round numbers: swept values, or names.
    """

    label: str
    low: float
    high: float
    log: bool = False
    given: tuple[tuple[float, str], ...] = ()

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
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def shown_ticks(self) -> list[tuple[float, str]]:
        """The ticks with their texts, all in one unit."""
        if self.given:
            return list(self.given)
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


def axis_of_values(label: str, texts: Sequence[str]) -> Axis:
    """Return an axis with a tick at each number that was typed for a key.

    It is logarithmic if the values are spread more evenly by their ratios than by their
    differences, as 1e-4, 3e-4, 1e-3 are.

    Args:
        label: The key.
        texts: Different numbers, as typed, at least one.
    """
    given = sorted((float(text), text) for text in texts)
    values = [value for value, _ in given]
    if is_log(values):
        reach = (values[-1] / values[0]) ** 0.05
        return Axis(label, values[0] / reach, values[-1] * reach, True, tuple(given))
    plain = axis(label, values)
    return Axis(label, plain.low, plain.high, False, tuple(given))


def is_log(values: Sequence[float]) -> bool:
    """Whether some ascending, different values belong on a logarithmic axis."""
    if len(values) < 2 or values[0] <= 0 or values[-1] / values[0] < _LOG_RANGE:
        return False
    logs = [math.log(value) for value in values]
    return _smallest_gap(logs) >= _smallest_gap(values)


def _smallest_gap(values: Sequence[float]) -> float:
    """Return the smallest gap between neighbours as a share of the whole."""
    gaps = [b - a for a, b in pairwise(values)]
    return min(gaps) / (values[-1] - values[0])


def axis_of_names(label: str, names: Sequence[str]) -> Axis:
    """Return an axis on which name number n has the place n."""
    return Axis(label, -0.5, len(names) - 0.5, False, tuple((n, s) for n, s in enumerate(names)))


def is_number(text: str) -> bool:
    """Whether a typed value is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


Swept = HeatMap | OverNames | OverNumbers
ABOUT = (
    "Each dot is the mean of a row over its seeds, its bar goes from the lowest to the "
    "highest seed. A cross is a row without a run that ended well, a small cross beside a dot "
    "runs of it that failed. A dashed square marks rows that are marked in the table."
)
ABOUT_HEAT = (
    "Each cell is the mean of a row over its seeds, darker is better. A hatched cell has no "
    "run that ended well and says how its runs ended. A star is a cell whose row is marked in the "
    "table, or of which some runs failed."
)
_NAMES, _KEYS = 40, 6
# Of fewer losses none is an outlier.
_FEW = 4
_WAITS = (RUNNING, NOT_STARTED, UNFINISHED)
_SEED, _MISSING = "train.seed", "-"


@dataclass(frozen=True)
class _Shown:
    """The rows of the pictures, and the number that they show: the one that decides who wins."""

    rows: Sequence[Row]
    height: Height
    best: int | None

    def dot(self, number: int, at: tuple[float, ...]) -> Dot:
        """Return one row at a place."""
        row = self.rows[number]
        found = self.height.over(row)
        waits = _counted_words(row, lambda status: status in _WAITS)
        failed = _counted_words(row, lambda status: status not in (*_WAITS, RunStatus.OK))
        return Dot(
            number,
            row.label,
            at,
            found.mean if found else None,
            (found.low, found.high) if found else (0.0, 0.0),
            found.n if found else 0,
            tuple(row.marks),
            failed or ("" if found or waits else f"no {self.height.name}"),
            waits,
            number == self.best,
            row.style,
            self.height.name,
        )


def swept_keys(rows: Sequence[Row]) -> list[str]:
    """Return the keys whose values distinguish the rows; names that do so alone stand alone."""
    typed = dict.fromkeys(
        text.partition("=")[0] for row in rows for run in row.runs for text in run.swept
    )
    keys = [key for key in typed if key != _SEED]
    values = {key: [value_of(row, key) for row in rows] for key in keys}
    keys = [key for key in keys if len(set(values[key])) > 1]
    alone = [
        key
        for key in keys
        if len(set(values[key])) == len(rows) and not all(map(is_number, values[key]))
    ]
    return alone[:1] if alone else keys


def value_of(row: Row, key: str) -> str:
    """Return what a row has for a key, as typed if it was typed."""
    if key == "model":
        return row.model
    for text in row.runs[0].swept:
        name, _, value = text.partition("=")
        if name == key:
            return value
    return settings(row.runs[0]).get(key, _MISSING)


@dataclass(frozen=True)
class SweptPlot:
    """A picture of what was swept, with what its caption adds."""

    picture: Swept
    caption: str


def swept_plots(rows: Sequence[Row], height: Height = LOSS_HEIGHT) -> list[SweptPlot]:
    """Return a picture of one key, a heat map of two, or a picture for each of more keys.

    Args:
        rows: The rows of the report.
        height: What the pictures show: the number that decides who wins.
    """
    if len(rows) < 2 or not any(row.counted for row in rows):
        return []
    keys, shown = swept_keys(rows), _Shown(rows, height, best_row(rows, height))
    if not keys:
        return [_over(shown, "row", [row.label for row in rows])]
    if len(keys) == 2 and (map_ := _heat_map(shown, keys)) is not None:
        return [map_]
    return [_over(shown, key, [value_of(row, key) for row in rows]) for key in keys[:_KEYS]]


def best_row(rows: Sequence[Row], height: Height) -> int | None:
    """Return the number of the row with the lowest mean in the largest comparable set."""
    sets = Counter(row.set for row in rows if row.set is not None)
    if not sets:
        return None
    largest = sets.most_common(1)[0][0]
    means = {
        n: found.mean
        for n, row in enumerate(rows)
        if row.set == largest and (found := height.over(row))
    }
    return min(means, key=means.__getitem__) if len(means) > 1 else None


def _counted_words(row: Row, holds: Callable[[str], bool]) -> str:
    """Return how some of a row's runs ended, with their numbers if there are several runs."""
    ends = Counter(run.status for run in row.runs if holds(run.status))
    alone = len(row.runs) == 1
    return ", ".join(status if alone else f"{count} {status}" for status, count in ends.items())


def _over(shown: _Shown, key: str, values: Sequence[str]) -> SweptPlot:
    if all(map(is_number, values)):
        return _over_numbers(shown, key, values)
    return _over_names(shown, key, values)


def _over_numbers(shown: _Shown, key: str, values: Sequence[str]) -> SweptPlot:
    by_value = {float(text): text for text in reversed(values)}
    dots = [shown.dot(number, (float(text),)) for number, text in enumerate(values)]
    x = axis_of_values(key, list(by_value.values()))
    y, cut = _loss_axis(dots, shown.height)
    picture = OverNumbers(_id(key), f"{shown.height.title} over {key}", dots, x, y)
    several = picture.path and len(by_value) < len(shown.rows)
    line = " The line goes through the best row at each value." if several else ""
    log = " The axis of the key is logarithmic." if x.log else ""
    return SweptPlot(picture, f"{ABOUT}{line}{log}{cut}{_comparable(shown)}")


def _over_names(shown: _Shown, key: str, values: Sequence[str]) -> SweptPlot:
    """Return the losses of names, the best name first; of very many names the best alone."""
    means: dict[str, float] = {}
    for row, name in zip(shown.rows, values, strict=True):
        found = shown.height.over(row)
        means[name] = min(means.get(name, math.inf), found.mean if found else math.inf)
    names = sorted(means, key=means.__getitem__)[:_NAMES]
    dots = [
        shown.dot(number, (float(names.index(name)),))
        for number, name in enumerate(values)
        if name in names
    ]
    x, cut = _loss_axis(dots, shown.height)
    fewer = f" The best {_NAMES} of {len(means)} are drawn." if len(means) > _NAMES else ""
    of = f"of each {key}" if key in ("model", "row") else f"over {key}"
    picture = OverNames(_id(key), f"{shown.height.title} {of}", dots, x, axis_of_names(key, names))
    return SweptPlot(picture, f"{ABOUT}{fewer}{cut}{_comparable(shown)}")


def _loss_axis(dots: Sequence[Dot], height: Height) -> tuple[Axis, str]:
    """Return an axis for the losses without those that would flatten all others, and a note."""
    losses = [dot.loss for dot in dots if dot.loss is not None]
    top = _ceiling(losses)
    ends = [end for dot in dots if dot.loss is not None for end in dot.ends]
    made = axis(height.label, [min(end, top) for end in ends] or [0.0, 1.0])
    over = sum(loss > made.high for loss in losses)
    word = "row lies" if over == 1 else "rows lie"
    note = f" {over} {word} above {made.high:.3g}, drawn at the edge." if over else ""
    return made, note


def _ceiling(losses: Sequence[float]) -> float:
    """Return a height above which a loss would flatten all others: ten times the median's way."""
    if len(losses) < _FEW:
        return math.inf
    low = min(losses)
    high = low + 10 * (median(losses) - low)
    return high if low < high < max(losses) else math.inf


def _heat_map(shown: _Shown, keys: Sequence[str]) -> SweptPlot | None:
    """Return the heat map of two keys; None if a cell would hold two rows, or most would be empty.

    The key with more values goes across.
    """
    rows = shown.rows
    pairs = [tuple(value_of(row, key) for key in keys) for row in rows]
    counts = [len({pair[n] for pair in pairs}) for n in (0, 1)]
    if len(set(pairs)) < len(rows) or 2 * len(rows) < counts[0] * counts[1]:
        return None
    names = [any(not is_number(pair[n]) for pair in pairs) for n in (0, 1)]
    # Names take more room across than numbers.
    across = 0 if (names[1], counts[0]) > (names[0], counts[1]) else 1
    x, y = _places(pairs, across), _places(pairs, 1 - across)
    y = y[::-1] if names[1 - across] else y  # from top to bottom
    dots = [
        shown.dot(number, (float(x.index(pair[across])), float(y.index(pair[1 - across]))))
        for number, pair in enumerate(pairs)
    ]
    losses = [dot.loss for dot in dots if dot.loss is not None]
    high = min(max(losses), _ceiling(losses))
    picture = HeatMap(
        f"swept-{keys[0]}-{keys[1]}".replace(".", "-"),
        f"{shown.height.title} over {keys[across]} and {keys[1 - across]}",
        dots,
        axis_of_names(keys[across], x),
        axis_of_names(keys[1 - across], y),
        min(losses),
        high,
    )
    over = sum(loss > high for loss in losses)
    cut = f" What is above {high:.3g} has the colour of {high:.3g}." if over else ""
    return SweptPlot(picture, f"{ABOUT_HEAT}{cut}{_comparable(shown)}")


def _places(pairs: Sequence[tuple[str, ...]], at: int) -> list[str]:
    """Return the different values of a key: numbers by size, names in the order of the rows."""
    values = list(dict.fromkeys(pair[at] for pair in pairs))
    return sorted(values, key=float) if all(map(is_number, values)) else values


def _comparable(shown: _Shown) -> str:
    """Say among which rows the best one is, if not all are comparable."""
    sets = Counter(row.set for row in shown.rows if row.set is not None)
    if len(sets) < 2:
        return ""
    if shown.best is None:
        return " These rows are not comparable with each other (see the table): none is the best."
    number, count = sets.most_common(1)[0]
    return f" The best is that of the {count} rows in set {number}; the others are unequal."


def _id(key: str) -> str:
    return f"swept-{key.replace('.', '-')}"
