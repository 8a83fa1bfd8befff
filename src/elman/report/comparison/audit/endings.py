"""How training ended: curves that still fall, and tasks that show nothing."""

from __future__ import annotations

import numpy as np

from elman.report.comparison.audit.compare import of_group, same_text
from elman.report.comparison.audit.finding import (
    Finding,
    Group,
    Subject,
    equal,
    named,
    unequal,
    unknown,
)
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import Run
from elman.report.comparison.statistics import quantile
from elman.report.comparison.tasks import AT_CHANCE, SOLVED, TaskCell
from elman.report.metrics_file import Floats

LAST = 0.2
"""The share of a run, at its end, whose slope is looked at."""
FALLS_BY = 0.01
"""A curve that falls by less than this share of its loss over that part counts as flat."""
_LEVEL = 0.998
_BLOCKS, _FEWEST = 20, 5
SLOPE = (
    f"the slope of the loss over the last {LAST:.0%} of the steps, fitted to the means of "
    f"{_FEWEST} to {_BLOCKS} equal blocks: a curve falls if the slope is below zero at the 0.1 % "
    f"level (Student's t over the blocks) and the fall over that part is more than {FALLS_BY:.0%} "
    "of the loss; where the noise would hide such a fall, it is not known"
)


def fall(values: Floats) -> float | None:
    """Return by what share of its end a curve falls over its last part; 0 if it is flat.

    Args:
        values: The curve, a number for each step.

    Returns:
        The share; None if the part has too few points, or too much noise to see such a fall.
    """
    last = values[-max(1, round(LAST * values.size)) :]
    blocks = min(_BLOCKS, last.size)
    if blocks < _FEWEST:
        return None
    means = np.array([float(part.mean()) for part in np.array_split(last, blocks)])
    x = np.arange(blocks) - (blocks - 1) / 2
    slope = float((x * means).sum() / (x * x).sum())
    rest = means - means.mean() - slope * x
    error = float(np.sqrt((rest @ rest) / (blocks - 2) / (x * x).sum()))
    if means[-1] <= 0:
        return None
    whole = blocks / float(means[-1])
    share, doubt = -slope * whole, quantile(_LEVEL, blocks - 2) * error * whole
    if share > max(doubt, FALLS_BY):
        return share
    would_be_seen = doubt < FALLS_BY or share + doubt < FALLS_BY
    return 0.0 if would_be_seen else None


def _fall_of(run: Run) -> float | None:
    return fall(run.metrics.losses) if run.metrics is not None else None


def _falls(row: Row) -> float | None:
    """Return the largest fall of a row's runs; None if one of them is not known."""
    falls = [_fall_of(run) for run in row.counted]
    known = [one for one in falls if one is not None]
    return max(known) if known and len(known) == len(falls) else None


def still_falling(subject: Subject) -> Finding | None:
    """Look at the end of every curve.

    If some still fall and others are flat, more training would change their differences. If all
    fall, the order holds for this budget, and a larger one is not known.
    """
    falling, flat, silent = [], [], []
    mixed = False
    for group in subject.groups:
        falls = {row.label: _falls(row) for row in group.rows}
        own = [f"{name} by {share:.1%}" for name, share in falls.items() if share]
        level = [name for name, share in falls.items() if share == 0]
        mixed |= bool(own) and bool(level)
        falling += own
        flat += level
        silent += [name for name, share in falls.items() if share is None]
    if not subject.groups:
        return None
    if mixed:
        return unequal(
            f"still falling over the last {LAST:.0%}: {named(falling)}; flat: {named(flat)}"
        )
    if falling:
        return unknown(
            f"the order at a larger budget: every curve still falls over the last {LAST:.0%}, "
            f"{named(falling)}"
        )
    if silent:
        return unknown(
            f"too few steps, or too noisy to see a fall of {FALLS_BY:.0%}: {named(silent)}"
        )
    return equal("every curve is flat at its end")


def lengths(subject: Subject) -> Finding | None:
    """Compare the lengths at which a task was tested."""
    if not any(group.cells for group in subject.groups):
        return None

    def of(run: Run) -> str | None:
        tested = sorted(map(int, run.result.accuracy_by_length)) if run.result else []
        return ", ".join(map(str, tested)) or None

    return same_text(subject, of, ("data.lengths",))


def separation(subject: Subject) -> Finding | None:
    """Look for tasks that tell no row from another: all solved them, or all are at chance."""
    alike = []
    groups = [group for group in subject.groups if group.cells]
    for group in groups:
        verdicts = {cell.verdict for cell in group.cells}
        if verdicts in ({SOLVED}, {AT_CHANCE}):
            (word,) = verdicts
            alike.append(f"{group.task}: all {len(group.cells)} rows {word}")
    if not groups:
        return None
    if alike:
        return unequal(f"separates nothing: {named(alike)}")
    return equal("every task tells rows apart")


def enough_steps(subject: Subject) -> Finding | None:
    """Look for tasks on which no row is above chance: perhaps nobody trained long enough."""
    groups = [group for group in subject.groups if group.cells]
    at_chance = [
        f"{group.task}: no row above chance after {_steps(group)}, {_ends(group)}"
        for group in groups
        if all(cell.verdict == AT_CHANCE for cell in group.cells)
    ]
    if not groups:
        return None
    return unequal(named(at_chance)) if at_chance else equal("a row is above chance on every task")


def _steps(group: Group) -> str:
    runs = [run for row in group.rows for run in row.counted]
    most = max((run.result.steps or 0 for run in runs if run.result), default=0)
    return f"{most:,} steps"


def _ends(group: Group) -> str:
    falls = [_falls(row) for row in group.rows]
    falling = sum(1 for share in falls if share)
    if falling:
        return f"and {falling} of {len(falls)} curves still fall"
    if None in falls:
        return "and the ends of the curves are not known"
    return "and every curve is flat"


def ability(subject: Subject) -> Finding | None:
    """Look for rows that lose to another on a task while they still learn: slow is not unable."""
    early, silent = [], []
    groups = [group for group in subject.groups if group.cells]
    for group in groups:
        for row, cell in zip(group.rows, group.cells, strict=True):
            if not _beaten(cell, group):
                continue
            share = _falls(row)
            name = f"{of_group(group)}{cell.model}"
            if share is None:
                silent.append(name)
            elif share:
                early.append(f"{name} ({cell.verdict}, its curve still falls)")
    if not groups:
        return None
    if early:
        return unequal(f"speed, not ability: {named(early)}")
    if silent:
        return unknown(f"whether these still learned: {named(silent)}")
    return equal("no row that lost still learned")


def _beaten(cell: TaskCell, group: Group) -> bool:
    """Whether a row did not solve its task, and another was above it."""
    best = max((max(one.seeds) for one in group.cells if one.seeds), default=0.0)
    return cell.verdict != SOLVED and bool(cell.seeds) and max(cell.seeds) < best
