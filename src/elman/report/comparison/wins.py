"""Who wins: the differences of comparable rows to one of them, and which rows are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from elman.base.errors import UserError, did_you_mean
from elman.evaluation.result import RunResult
from elman.report.comparison.columns import speed_head
from elman.report.comparison.conditions import OF_SPEED, run_marks
from elman.report.comparison.deciding import (
    AXES,
    KIND_OF,
    LOSS,
    MEMORY,
    SPEED,
    VAL_BPB,
    Axis,
    Compared,
    Deciding,
    Reading,
    by_rule,
    deciding,
    different_tokens,
    ends,
    goes_on,
    height_of,
    held_out_loss,
    instead,
    spent,
    training_loss,
)
from elman.report.comparison.rows import Row
from elman.report.comparison.statistics import LEVEL, Difference, difference, holm

Values = Mapping[int | None, float]


@dataclass(frozen=True)
class Comparison:
    """One number of one row against the reference.

    Args:
        number: Which number.
        axis: At equal what; None for speed and memory, which belong to a run as a whole.
        effort: How much of it, in steps, minutes, bytes or FLOPs.
        difference: Of the two rows, of logarithms if it is a ratio; None if the data do not permit
            it.
        why_not: Why there is none.
        earlier: Whether a run goes on after this effort.
        p: Probability by Holm, over the rows of the table; None for one seed.
        alpha: The level that the probability of this line had to stay under.
        marks: Why the number is not the model's own, as ``contended``.
    """

    number: Compared
    axis: Axis | None = None
    effort: float | None = None
    difference: Difference | None = None
    why_not: str = ""
    earlier: bool = False
    p: float | None = None
    alpha: float = 1 - LEVEL
    marks: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether the difference is told from noise, with all comparisons of the table."""
        return self.p is not None and self.p < 1 - LEVEL

    @property
    def more_seeds(self) -> int | None:
        """How many more seeds would decide it; None if it is decided, or unknown."""
        if self.difference is None or self.decided or self.difference.interval is None:
            return None
        return self.difference.seeds_to_decide(self.alpha)

    @property
    def value(self) -> float | None:
        """The difference, or the ratio."""
        return None if self.difference is None else self._outside(self.difference.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval, not adjusted for the number of comparisons."""
        ends = self.difference.interval if self.difference is not None else None
        return None if ends is None else (self._outside(ends[0]), self._outside(ends[1]))

    def _outside(self, value: float) -> float:
        if not self.number.is_ratio:
            return value
        return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True)
class Challenger:
    """A row against the reference: a line for each number.

    Args:
        row: The row.
        lines: Its lines.
        to_decide: The commands that would decide it, if it is not decided.
    """

    row: Row
    lines: tuple[Comparison, ...]
    to_decide: tuple[str, ...] = ()

    def line(self, number: Compared, axis: Axis | None = None) -> Comparison:
        """Return the line of a number, at equal ``axis``."""
        key = (number.key, axis)
        return next(one for one in self.lines if (one.number.key, one.axis) == key)


@dataclass(frozen=True)
class Group:
    """Comparable rows, against one of them.

    Args:
        reference: That one.
        chosen: Whether the user chose it; otherwise it has the lowest of what decides.
        by: What decides.
        challengers: The other rows, the best first.
        to_measure: The commands that give rows of one seed more, so that the noise is known.
    """

    reference: Row
    chosen: bool
    by: Deciding
    challengers: tuple[Challenger, ...]
    to_measure: tuple[str, ...] = ()

    @property
    def axis(self) -> Axis:
        """At equal what the rows are compared."""
        return self.by.axis

    @property
    def judged_apart(self) -> bool:
        """Whether the verdict of a tuned sweep is about these rows, and is the only one."""
        rows = (self.reference, *(one.row for one in self.challengers))
        return all(run.tuning is not None for row in rows for run in row.runs)

    def decisive(self, one: Challenger) -> Comparison:
        """Return the line of a row that decides."""
        return one.line(self.by.number, self.by.axis)

    def beside(self, one: Challenger) -> Comparison:
        """Return the line that is named beside it: of the other loss."""
        return one.line(self.by.other, self.by.axis)


@dataclass(frozen=True)
class Wins:
    """Every group of comparable rows, and a line for each reason why a row is in none."""

    groups: tuple[Group, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def by(self) -> Deciding | None:
        """What decides in the largest group; None if nothing is compared."""
        if not self.groups:
            return None
        return max(self.groups, key=lambda group: len(group.challengers)).by


def who_wins(rows: Sequence[Row], against: str | int | None = None) -> Wins:
    """Return the differences of the rows to the row ``against``.

    Args:
        rows: The rows of the report.
        against: Label, model or job number of a row. By default the row of each group of
            comparable rows with the lowest of what decides, of those with several seeds if there
            are any.

    Raises:
        UserError: there is no such row, several are called so, or none of its runs counts.
    """
    chosen = _chosen(rows, against) if against is not None else None
    counted = [row for row in rows if row.counted]
    by_conditions: dict[tuple[str, ...], list[Row]] = {}
    for row in counted:
        by_conditions.setdefault(tuple(_conditions(row).values()), []).append(row)
    if chosen is not None:
        members = by_conditions[tuple(_conditions(chosen).values())]
        groups = [_decided(members, chosen)] if len(members) > 1 else []
        return Wins(tuple(groups), tuple(_left_out(chosen, counted, members)))
    if len(counted) < 2:
        return Wins()
    groups = [_decided(members, None) for members in _several(by_conditions)]
    if not groups:
        return Wins((), (_all_differ(counted),))
    first = max(groups, key=lambda group: len(group.challengers)).reference
    in_one = [*(row for members in _several(by_conditions) for row in members)]
    return Wins(tuple(groups), tuple(_left_out(first, counted, in_one)))


def _several(by_conditions: Mapping[tuple[str, ...], list[Row]]) -> list[list[Row]]:
    return [members for members in by_conditions.values() if len(members) > 1]


def _conditions(row: Row) -> dict[str, str]:
    """Return what must agree; other seeds only make a difference less certain."""
    return {name: value for name, value in row.conditions.items() if name != "seeds"}


def _best(rows: Sequence[Row], by: Deciding) -> Row:
    """Return the row with the lowest of what decides; one seed alone may be the lowest by luck."""
    over = height_of(by).over
    known = [(values, row) for row in rows if (values := over(row)) is not None]
    several = [pair for pair in known if pair[0].n > 1] or known
    return min(several, key=lambda pair: pair[0].mean)[1] if several else rows[0]


def _chosen(rows: Sequence[Row], against: str | int) -> Row:
    matches = rows_called(rows, against)
    typed = f"report.against={against}"
    if not matches:
        hint = did_you_mean(str(against), [*dict.fromkeys(row.model for row in rows)])
        labels = ", ".join(row.label for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        raise UserError(f"{typed}: no such row{hint}; name a row by its model, as in {labels}")
    if len(matches) > 1:
        jobs = [f"{row.jobs.split(',')[0]} ({row.label})" for row in matches]
        raise UserError(
            f"{typed}: {len(matches)} rows are called so; name one by the number of a job of it, "
            f"report.against=<number>: {', '.join(jobs[:8])}{', ...' if len(jobs) > 8 else ''}"
        )
    if not matches[0].counted:
        raise UserError(
            f"{typed}: no run of this row ended with ok ({matches[0].status}); name another row"
        )
    return matches[0]


def rows_called(rows: Sequence[Row], against: str | int) -> list[Row]:
    """Return the rows of that label; if there is none, of that arm or model; or with that job."""
    if isinstance(against, int):
        return [row for row in rows if any(run.job == against for run in row.runs)]
    by_label = [row for row in rows if row.label == against]
    arms = [one.tuning and one.tuning.arm for one in (row.runs[0] for row in rows)]
    by_arm = [row for row, arm in zip(rows, arms, strict=True) if arm == against]
    return by_label or by_arm or [row for row in rows if row.model == against]


def _left_out(reference: Row, rows: Sequence[Row], members: Sequence[Row]) -> list[str]:
    """Return a line for each way in which rows differ that are compared with no other."""
    whys: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if all(row is not member for member in members):
            whys.setdefault(_differing([reference, row]), []).append(row.label)
    return [
        f"not compared with {reference.label}: {_named(labels)} (different {', '.join(names)})"
        for names, labels in whys.items()
    ]


def _all_differ(rows: Sequence[Row]) -> str:
    return "no two rows are comparable, so nobody wins; they differ in " + ", ".join(
        _differing(rows)
    )


def _differing(rows: Sequence[Row]) -> tuple[str, ...]:
    conditions = [_conditions(row) for row in rows]
    return tuple(name for name in conditions[0] if len({one[name] for one in conditions}) > 1)


def _named(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 4 else f"{len(labels)} rows"


def _decided(members: Sequence[Row], chosen: Row | None) -> Group:
    """Return a group, by the number that the rule names, or by the other if one row has no such.

    All its rows are compared by one number.
    """
    by = deciding(members)
    group = _group(members, chosen, by)
    lacking = [one for one in group.challengers if group.decisive(one).difference is None]
    if lacking and by.number is by_rule(members).number:
        why = f"is {group.decisive(lacking[0]).why_not}"
        other = _group(members, chosen, instead(by, why))
        if all(other.decisive(one).difference is not None for one in other.challengers):
            return other
    return group


def _group(members: Sequence[Row], chosen: Row | None, by: Deciding) -> Group:
    reference = _best(members, by) if chosen is None else chosen
    readings = {
        id(run): (training_loss(run), held_out_loss(run)) for row in members for run in row.counted
    }
    others = [row for row in members if row is not reference]
    axes = (*AXES, *(() if by.axis in AXES else (by.axis,)))
    challengers = [Challenger(row, tuple(_lines(row, reference, axes, readings))) for row in others]

    def height(challenger: Challenger) -> float:
        value = challenger.line(by.number, by.axis).value
        return math.inf if value is None else value

    adjusted = tuple(sorted(_adjusted(challengers), key=height))
    return Group(reference, chosen is not None, by, adjusted)


_Readings = Mapping[int, tuple[Reading, Reading]]


def _lines(row: Row, reference: Row, axes: Sequence[Axis], readings: _Readings) -> list[Comparison]:
    lines = [
        _at_equal(
            number, axis, row, reference, {run: both[place] for run, both in readings.items()}
        )
        for place, number in enumerate((LOSS, VAL_BPB))
        for axis in axes
    ]
    speed = replace(SPEED, name=speed_head((row, reference)))
    lines.append(_of_whole_runs(speed, lambda result: result.tok_s, row, reference))
    lines.append(_of_whole_runs(MEMORY, lambda result: result.peak_memory_bytes, row, reference))
    return lines


def _at_equal(
    number: Compared, axis: Axis, row: Row, reference: Row, readings: Mapping[int, Reading]
) -> Comparison:
    """Compare a loss where the shortest run of the two rows ends."""
    if number is LOSS and different_tokens((row, reference)):
        return Comparison(number, axis, why_not="not compared between different tokens")
    runs = [*row.counted, *reference.counted]
    whole = [ends(run).get(axis) for run in runs]
    known = [effort for effort in whole if effort is not None]
    if len(known) < len(whole):
        return Comparison(number, axis, why_not=f"not known: a run has no record of its {axis}")
    effort = min(known)
    # No step is cut short, so runs of one budget end up to a step apart: whole runs are equal.
    equal = all(spent(run, axis) for run in runs)
    values = [
        {
            run.seed: readings[id(run)].final[axis] if equal else readings[id(run)].at(axis, effort)
            for run in one.counted
        }
        for one in (row, reference)
    ]
    complete = [_complete(one) for one in values]
    if complete[0] is None or complete[1] is None:
        why = f"not recorded near {axis} {_shown(effort)} in every run"
        return Comparison(number, axis, effort, why_not=why)
    earlier = not equal and any(goes_on(run, axis, effort) for run in runs)
    diff = difference(complete[0], complete[1])
    marks = _marks(row, reference) if KIND_OF[axis].takes_time else ()
    return Comparison(number, axis, effort, diff, earlier=earlier, marks=marks)


def _complete(values: Mapping[int | None, float | None]) -> Values | None:
    known = {seed: value for seed, value in values.items() if value is not None}
    return known if len(known) == len(values) else None


def _of_whole_runs(
    number: Compared, of: Callable[[RunResult], float | None], row: Row, reference: Row
) -> Comparison:
    """Compare a positive number of whole runs by its ratio."""
    logs = [
        {run.seed: _log(of(run.result)) for run in one.counted if run.result is not None}
        for one in (row, reference)
    ]
    first, second = (_complete(one) for one in logs)
    if not first or not second:
        return Comparison(number, why_not="not recorded in every run")
    marks = _marks(row, reference) if number.key == SPEED.key else ()
    return Comparison(number, difference=difference(first, second), marks=marks)


def _marks(row: Row, reference: Row) -> tuple[str, ...]:
    """Return why a comparison of speeds or times does not tell the models' own.

    Only what was computed in the two rows' own runs: that rows of another set are larger or longer
    says nothing about these two.
    """
    runs = [*row.counted, *reference.counted]
    return tuple(dict.fromkeys(mark for run in runs for mark in run_marks(run) if mark in OF_SPEED))


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def _adjusted(challengers: Sequence[Challenger]) -> list[Challenger]:
    """Adjust the probabilities of each number at each axis over all rows, by Holm."""
    columns = []
    for column in zip(*(one.lines for one in challengers), strict=True):
        raw = [line.difference.p if line.difference is not None else None for line in column]
        places = [place for place, p in enumerate(raw) if p is not None]
        lines = list(column)
        for place, (p, alpha) in zip(
            places, holm([raw[place] or 0.0 for place in places]), strict=True
        ):
            lines[place] = replace(lines[place], p=p, alpha=alpha)
        columns.append(lines)
    return [
        replace(one, lines=tuple(lines))
        for one, lines in zip(challengers, zip(*columns, strict=True), strict=True)
    ]


def _shown(effort: float) -> str:
    return f"{effort:,.0f}" if effort >= 1000 or effort == int(effort) else f"{effort:.3g}"
