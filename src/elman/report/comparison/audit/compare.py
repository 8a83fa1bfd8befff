"""Compares one value over the rows of a report: held equal, not equal, or not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from elman.report.comparison.audit.finding import (
    MOST_NAMES,
    Finding,
    Group,
    Subject,
    declared,
    equal,
    named,
    unequal,
    unknown,
)
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run

NOT_RECORDED = "not recorded"


def listed(places: Mapping[str, Sequence[str]]) -> str:
    """Return values, each with the names of those that have it."""
    parts = [f"{value} ({named(names)})" for value, names in list(places.items())[:MOST_NAMES]]
    more = len(places) - MOST_NAMES
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def same_text(
    subject: Subject, of: Callable[[Run], str | None], keys: Sequence[str] = ()
) -> Finding | None:
    """Compare a text of every run that counts.

    Args:
        subject: What is audited.
        of: Returns the text; None if the files do not say.
        keys: The settings that it depends on, or groups of them; where one of them was swept alike
            for every model, rows with one value of it are compared.
    """
    places: dict[str, dict[str, None]] = {}
    silent: dict[str, None] = {}
    differs = False
    for group in subject.groups:
        for rows in group.slices(keys):
            texts = {of(run) for row in rows for run in row.counted}
            differs |= len(texts - {None}) > 1
        for row in group.rows:
            for text in map(of, row.counted):
                if text is None:
                    silent[row.label] = None
                else:
                    places.setdefault(text, {})[row.label] = None
    words = listed({text: [*rows] for text, rows in places.items()})
    return _ended(subject, keys, differs, words, [*silent], next(iter(places), ""), len(places) > 1)


def _ended(
    subject: Subject,
    keys: Sequence[str],
    differs: bool,
    words: str,
    silent: Sequence[str],
    one: str,
    several: bool,
) -> Finding | None:
    if not subject.groups:
        return None
    if differs:
        return unequal(words)
    if silent:
        return unknown(f"{NOT_RECORDED} in {named(silent)}" + (f"; {words}" if words else ""))
    if several:
        swept = dict.fromkeys(key for group in subject.groups for key in group.swept(keys))
        why = f"swept: {', '.join(swept)}" if swept else "one value for each task"
        return declared(f"{words}; {why}") if swept else equal(f"{words}; {why}")
    return equal(one)


def same_number(
    subject: Subject,
    of: Callable[[Run], float | None],
    shown: Callable[[float], str],
    near: float,
    keys: Sequence[str] = (),
) -> Finding | None:
    """Compare a number, the mean over the runs of each row; arguments as of :func:`same_text`.

    Args:
        subject: What is audited.
        of: Returns the number; None if the files do not say.
        shown: Turns it into text.
        near: Largest spread, (largest - smallest) / smallest, of numbers that are equal.
        keys: As of :func:`same_text`.
    """
    if not subject.groups:
        return None
    silent = [row.label for group in subject.groups for row in group.rows if _mean(row, of) is None]
    widest = max(
        (ends_of(rows, of) for group in subject.groups for rows in group.slices(keys)),
        key=lambda ends: ends.spread,
    )
    if widest.spread > near:
        return unequal(widest.words(shown))
    if silent:
        return unknown(f"{NOT_RECORDED} in {named(silent)}")
    over_all = max(
        (ends_of(group.rows, of) for group in subject.groups), key=lambda ends: ends.spread
    )
    if over_all.spread > near:
        swept = dict.fromkeys(key for group in subject.groups for key in group.swept(keys))
        return declared(f"{over_all.words(shown)}; swept: {', '.join(swept)}")
    return equal(over_all.words(shown))


class Ends:
    """The smallest and the largest of some rows."""

    def __init__(self, known: Mapping[str, float]) -> None:
        self._known = known
        self.low = min(known.values(), default=0.0)
        self.high = max(known.values(), default=0.0)

    @property
    def spread(self) -> float:
        """(largest - smallest) / smallest."""
        if self.low > 0:
            return (self.high - self.low) / self.low
        return float("inf") if self.high > self.low else 0.0

    def words(self, shown: Callable[[float], str]) -> str:
        """Return both with the names of their rows, or the one that all have."""
        if shown(self.low) == shown(self.high):
            return shown(self.low)
        names = {value: name for name, value in reversed([*self._known.items()])}
        ends = f"{shown(self.low)} ({names[self.low]}) to {shown(self.high)} ({names[self.high]})"
        apart = "" if self.low <= 0 else f", {_apart(self.spread)} apart"
        return ends + apart


def _apart(spread: float) -> str:
    """Return a spread as a percentage, or from twice as much on as a factor."""
    if spread >= 1:
        return f"x {1 + spread:.1f}"
    return f"{spread:.1%}" if spread < 0.1 else f"{spread:.0%}"


def ends_of(rows: Sequence[Row], of: Callable[[Run], float | None]) -> Ends:
    """Return the ends of a number over some rows; rows that lack it are left out."""
    means = {row.label: _mean(row, of) for row in rows}
    return Ends({label: value for label, value in means.items() if value is not None})


def _mean(row: Row, of: Callable[[Run], float | None]) -> float | None:
    numbers = [of(run) for run in row.counted]
    known = [number for number in numbers if number is not None]
    return fmean(known) if known and len(known) == len(numbers) else None


def of_group(group: Group) -> str:
    """Return how a line that is about one task begins."""
    return f"{group.task}: " if group.task else ""
