"""Pictures of what was swept: over one key, over two, or over each of several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from elman.base.exit_status import RunStatus
from elman.report.comparison.axes import Axis, axis, axis_of_names, axis_of_values
from elman.report.comparison.blocks import table
from elman.report.comparison.conditions import settings
from elman.report.comparison.deciding import LOSS_HEIGHT, Height
from elman.report.comparison.draw import Plot
from elman.report.comparison.pictures import Dot, HeatMap, OverNames, OverNumbers
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import NOT_ENDED

Swept = HeatMap | OverNames | OverNumbers
ABOUT = (
    "Each dot is the mean of a row over its seeds. Its bar goes from the lowest to the highest "
    "seed. A cross is a row without a run that ended well. A small cross beside a dot stands for "
    "runs of it that failed. A dashed square marks rows that are marked in the table."
)
ABOUT_HEAT = (
    "Each cell is the mean of a row over its seeds; darker is better. A hatched cell has no run "
    "that ended well, and says how its runs ended. A star marks a cell whose row is marked in the "
    "table, or some of whose runs failed."
)
_NAMES, _KEYS = 40, 6
_MOST_LINES = 60
# Of fewer losses none is an outlier.
_FEW = 4
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
        values = self.height.over(row)
        waits = _counted_words(row, lambda status: status in NOT_ENDED)
        failed = _counted_words(row, lambda status: status not in (*NOT_ENDED, RunStatus.OK))
        return Dot(
            number,
            row.label,
            at,
            values.mean if values else None,
            (values.low, values.high) if values else (0.0, 0.0),
            values.n if values else 0,
            tuple(row.marks),
            failed or ("" if values or waits else f"no {self.height.name}"),
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


def is_number(text: str) -> bool:
    """Whether a typed value is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def swept_plots(rows: Sequence[Row], height: Height = LOSS_HEIGHT) -> list[Plot]:
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
        n: values.mean
        for n, row in enumerate(rows)
        if row.set == largest and (values := height.over(row))
    }
    return min(means, key=means.__getitem__) if len(means) > 1 else None


def _counted_words(row: Row, holds: Callable[[str], bool]) -> str:
    """Return how some of a row's runs ended, with their numbers if there are several runs."""
    ends = Counter(run.status for run in row.runs if holds(run.status))
    alone = len(row.runs) == 1
    return ", ".join(status if alone else f"{count} {status}" for status, count in ends.items())


def _over(shown: _Shown, key: str, values: Sequence[str]) -> Plot:
    if all(map(is_number, values)):
        return _over_numbers(shown, key, values)
    return _over_names(shown, key, values)


def _over_numbers(shown: _Shown, key: str, values: Sequence[str]) -> Plot:
    by_value = {float(text): text for text in reversed(values)}
    dots = [shown.dot(number, (float(text),)) for number, text in enumerate(values)]
    x = axis_of_values(key, list(by_value.values()))
    y, cut = _loss_axis(dots, shown.height)
    picture = OverNumbers(_id(key), f"{shown.height.title} over {key}", dots, x, y)
    several = picture.path and len(by_value) < len(shown.rows)
    line = " The line goes through the best row at each value." if several else ""
    log = " The axis of the key is logarithmic." if x.log else ""
    return _plot(shown, picture, f"{ABOUT}{line}{log}{cut}")


def _over_names(shown: _Shown, key: str, values: Sequence[str]) -> Plot:
    """Return the losses of names, the best name first; of very many names the best alone."""
    means: dict[str, float] = {}
    for row, name in zip(shown.rows, values, strict=True):
        losses = shown.height.over(row)
        means[name] = min(means.get(name, math.inf), losses.mean if losses else math.inf)
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
    return _plot(shown, picture, f"{ABOUT}{fewer}{cut}")


def _loss_axis(dots: Sequence[Dot], height: Height) -> tuple[Axis, str]:
    """Return an axis for the losses without those that would flatten all others, and a note."""
    losses = [dot.loss for dot in dots if dot.loss is not None]
    top = ceiling(losses)
    ends = [end for dot in dots if dot.loss is not None for end in dot.ends]
    made = axis(height.label, [min(end, top) for end in ends] or [0.0, 1.0])
    over = sum(loss > made.high for loss in losses)
    word = "row lies" if over == 1 else "rows lie"
    note = f" {over} {word} above {made.high:.3g}, drawn at the edge." if over else ""
    return made, note


def ceiling(losses: Sequence[float], ways: float = 10) -> float:
    """Return a height above which a loss would flatten all others: ten times the median's way."""
    if len(losses) < _FEW:
        return math.inf
    low = min(losses)
    high = low + ways * (median(losses) - low)
    return high if low < high < max(losses) else math.inf


def _heat_map(shown: _Shown, keys: Sequence[str]) -> Plot | None:
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
    high = min(max(losses), ceiling(losses))
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
    cut = f" What is above {high:.3g} has the color of {high:.3g}." if over else ""
    return _plot(shown, picture, f"{ABOUT_HEAT}{cut}")


def _places(pairs: Sequence[tuple[str, ...]], at: int) -> list[str]:
    """Return the different values of a key: numbers by size, names in the order of the rows."""
    values = list(dict.fromkeys(pair[at] for pair in pairs))
    return sorted(values, key=float) if all(map(is_number, values)) else values


def _plot(shown: _Shown, picture: Swept, caption: str) -> Plot:
    """Return a picture with its numbers; the losses of very many rows stand in the table alone."""
    height = shown.height
    lines = tuple(
        (
            dot.name,
            height.shown(dot.loss),
            *(NONE if dot.n < 2 else height.shown(end) for end in dot.ends),
            str(dot.n),
            "; ".join(
                filter(None, (*dot.marks, dot.failed, dot.waits, "the best" if dot.best else ""))
            )
            or "ok",
        )
        for dot in picture.dots
        if len(picture.dots) <= _MOST_LINES
    )
    heads = ("row", height.name, "lowest seed", "highest seed", "n", "status")
    numbers = table(heads, lines) if lines else None
    return Plot(picture, caption + _comparable(shown), numbers)


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
