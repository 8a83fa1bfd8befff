"""What a sweep has swept, as pictures: loss over one key, over two, or over each of many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from elman.base.errors import RunStatus
from elman.report.comparison.axes import Axis, axis, axis_of_names, axis_of_values, is_number
from elman.report.comparison.columns import LOSS
from elman.report.comparison.conditions import settings
from elman.report.comparison.pictures import Dot, HeatMap, OverNames, OverNumbers
from elman.report.comparison.rows import Row
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED

Swept = HeatMap | OverNames | OverNumbers
ABOUT = (
    "Each dot is the mean loss of a row over its seeds, its bar goes from the lowest to the "
    "highest seed. A cross is a row without a run that ended well, a small cross beside a dot "
    "runs of it that failed. A dashed square marks rows that are marked in the table."
)
ABOUT_HEAT = (
    "Each cell is the mean loss of a row over its seeds, darker is better. A hatched cell has no "
    "run that ended well and says how its runs ended. A star is a cell whose row is marked in the "
    "table, or of which some runs failed."
)
_NAMES, _KEYS = 40, 6
# Of fewer losses none is an outlier.
_FEW = 4
_WAITS = (RUNNING, NOT_STARTED, UNFINISHED)
_SEED, _MISSING = "train.seed", "-"
_LOSS = "loss, nats per byte"


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


def swept_plots(rows: Sequence[Row]) -> list[SweptPlot]:
    """Return a picture of one key, a heat map of two, or a picture for each of more keys."""
    if len(rows) < 2 or not any(row.counted for row in rows):
        return []
    keys = swept_keys(rows)
    best = best_row(rows)
    if not keys:
        return [_over(rows, "row", [row.label for row in rows], best)]
    if len(keys) == 2 and (map_ := _heat_map(rows, keys, best)) is not None:
        return [map_]
    found = [_over(rows, key, [value_of(row, key) for row in rows], best) for key in keys[:_KEYS]]
    return found


def best_row(rows: Sequence[Row]) -> int | None:
    """Return the number of the row with the lowest mean loss in the largest comparable set."""
    sets = Counter(row.set for row in rows if row.set is not None)
    if not sets:
        return None
    largest = sets.most_common(1)[0][0]
    means = {n: mean for n, row in enumerate(rows) if row.set == largest and (mean := _mean(row))}
    return min(means, key=means.__getitem__) if len(means) > 1 else None


def _mean(row: Row) -> float | None:
    found = row.over_runs(LOSS.of)
    return found.mean if found else None


def _dot(number: int, row: Row, at: tuple[float, ...], best: int | None) -> Dot:
    found = row.over_runs(LOSS.of)
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
        failed or ("" if found or waits else "no loss"),
        waits,
        number == best,
        row.style,
    )


def _counted_words(row: Row, holds: Callable[[str], bool]) -> str:
    """Return how some of a row's runs ended, with their numbers if there are several runs."""
    ends = Counter(run.status for run in row.runs if holds(run.status))
    alone = len(row.runs) == 1
    return ", ".join(status if alone else f"{count} {status}" for status, count in ends.items())


def _over(rows: Sequence[Row], key: str, values: Sequence[str], best: int | None) -> SweptPlot:
    if all(map(is_number, values)):
        return _over_numbers(rows, key, values, best)
    return _over_names(rows, key, values, best)


def _over_numbers(
    rows: Sequence[Row], key: str, values: Sequence[str], best: int | None
) -> SweptPlot:
    by_value = {float(text): text for text in reversed(values)}
    dots = [
        _dot(number, row, (float(text),), best)
        for number, (row, text) in enumerate(zip(rows, values, strict=True))
    ]
    x = axis_of_values(key, list(by_value.values()))
    y, cut = _loss_axis(dots)
    picture = OverNumbers(_id(key), f"Loss over {key}", dots, x, y)
    several = picture.path and len(by_value) < len(rows)
    line = " The line goes through the best row at each value." if several else ""
    log = " The axis of the key is logarithmic." if x.log else ""
    return SweptPlot(picture, f"{ABOUT}{line}{log}{cut}{_comparable(rows, best)}")


def _over_names(
    rows: Sequence[Row], key: str, values: Sequence[str], best: int | None
) -> SweptPlot:
    """Return the losses of names, the best name first; of very many names the best alone."""
    means: dict[str, float] = {}
    for row, name in zip(rows, values, strict=True):
        mean = _mean(row)
        means[name] = min(means.get(name, float("inf")), float("inf") if mean is None else mean)
    names = sorted(means, key=means.__getitem__)[:_NAMES]
    dots = [
        _dot(number, row, (float(names.index(name)),), best)
        for number, (row, name) in enumerate(zip(rows, values, strict=True))
        if name in names
    ]
    x, cut = _loss_axis(dots)
    fewer = f" The best {_NAMES} of {len(means)} are drawn." if len(means) > _NAMES else ""
    title = f"Loss of each {key}" if key in ("model", "row") else f"Loss over {key}"
    picture = OverNames(_id(key), title, dots, x, axis_of_names(key, names))
    return SweptPlot(picture, f"{ABOUT}{fewer}{cut}{_comparable(rows, best)}")


def _loss_axis(dots: Sequence[Dot]) -> tuple[Axis, str]:
    """Return an axis for the losses without those that would flatten all others, and a note."""
    losses = [dot.loss for dot in dots if dot.loss is not None]
    top = _ceiling(losses)
    ends = [end for dot in dots if dot.loss is not None for end in dot.ends]
    made = axis(_LOSS, [min(end, top) for end in ends] or [0.0, 1.0])
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


def _heat_map(rows: Sequence[Row], keys: Sequence[str], best: int | None) -> SweptPlot | None:
    """Return the heat map of two keys; None if a cell would hold two rows, or most would be empty.

    The key with more values goes across.
    """
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
        _dot(number, row, (float(x.index(pair[across])), float(y.index(pair[1 - across]))), best)
        for number, (row, pair) in enumerate(zip(rows, pairs, strict=True))
    ]
    losses = [dot.loss for dot in dots if dot.loss is not None]
    high = min(max(losses), _ceiling(losses))
    picture = HeatMap(
        f"swept-{keys[0]}-{keys[1]}".replace(".", "-"),
        f"Loss over {keys[across]} and {keys[1 - across]}",
        dots,
        axis_of_names(keys[across], x),
        axis_of_names(keys[1 - across], y),
        min(losses),
        high,
    )
    over = sum(loss > high for loss in losses)
    cut = f" Losses above {high:.3g} have the colour of {high:.3g}." if over else ""
    return SweptPlot(picture, f"{ABOUT_HEAT}{cut}{_comparable(rows, best)}")


def _places(pairs: Sequence[tuple[str, ...]], at: int) -> list[str]:
    """Return the different values of a key: numbers by size, names in the order of the rows."""
    values = list(dict.fromkeys(pair[at] for pair in pairs))
    return sorted(values, key=float) if all(map(is_number, values)) else values


def _comparable(rows: Sequence[Row], best: int | None) -> str:
    """Say among which rows the best one is, if not all are comparable."""
    sets = Counter(row.set for row in rows if row.set is not None)
    if len(sets) < 2:
        return ""
    if best is None:
        return " These rows are not comparable with each other (see the table): none is the best."
    number, count = sets.most_common(1)[0]
    return f" The best is that of the {count} rows in set {number}; the others are unequal."


def _id(key: str) -> str:
    return f"swept-{key.replace('.', '-')}"
