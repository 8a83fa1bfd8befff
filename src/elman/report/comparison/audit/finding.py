"""What an audit looks at, and what it may find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from elman.config.catalog import SHIPPED, Place
from elman.published import PublishedResult
from elman.report.comparison.deciding import Deciding
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import TRIAL, Run
from elman.report.comparison.sources import Source
from elman.report.comparison.tasks import TaskCell, Tasks
from elman.tuning.trials import Tuned, trials_of

MOST_NAMES = 4
"""How many rows, values or models a line names."""


class State(StrEnum):
    """What an audit says of one thing. What the files do not say is never equal."""

    UNEQUAL = "not equal"
    UNKNOWN = "not known"
    DECLARED = "declared"
    EQUAL = "held equal"


@dataclass(frozen=True)
class Finding:
    """What was found.

    Args:
        state: Whether it was held equal.
        detail: What the files say, in a line.
    """

    state: State
    detail: str


def equal(detail: str) -> Finding:
    """Return that a thing was held equal."""
    return Finding(State.EQUAL, detail)


def unequal(detail: str) -> Finding:
    """Return that a thing was not held equal."""
    return Finding(State.UNEQUAL, detail)


def unknown(detail: str) -> Finding:
    """Return that the files do not say."""
    return Finding(State.UNKNOWN, detail)


def declared(detail: str) -> Finding:
    """Return that a thing differs because the command says so."""
    return Finding(State.DECLARED, detail)


def named(names: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Group:
    """The rows that answer one question: those on text, or those on one task.

    Args:
        task: The task; empty for text.
        rows: The rows of which a run counts.
        cells: The same rows as cells of the grid of tasks; empty for text.
    """

    task: str
    rows: tuple[Row, ...]
    cells: tuple[TaskCell, ...] = ()

    @property
    def by_model(self) -> dict[str, list[Row]]:
        """The rows by model."""
        rows_of: dict[str, list[Row]] = {}
        for row in self.rows:
            rows_of.setdefault(row.model, []).append(row)
        return rows_of

    @cached_property
    def crossed(self) -> frozenset[str]:
        """The swept keys that are no part of a model: each model has the same several values.

        A key with other values for one model than for another is a difference between the models.
        """
        values: dict[str, dict[str, set[str]]] = {}
        for row in self.rows:
            for text in row.counted[0].swept:
                key, _, value = text.partition("=")
                values.setdefault(key, {}).setdefault(row.model, set()).add(value)
        ignored = {"model", "data", "train.seed"}
        return frozenset(
            key
            for key, by_model in values.items()
            if key not in ignored
            and by_model.keys() == self.by_model.keys()
            and len(first := next(iter(by_model.values()))) > 1
            and all(one == first for one in by_model.values())
        )

    def slices(self, keys: Sequence[str]) -> Iterator[tuple[Row, ...]]:
        """Yield the rows that have the same values of the swept keys below ``keys``."""
        chosen = [key for key in self.crossed if _below(key, keys)]
        parts: dict[tuple[str | None, ...], list[Row]] = {}
        for row in self.rows:
            swept = dict(text.partition("=")[::2] for text in row.counted[0].swept)
            parts.setdefault(tuple(swept.get(key) for key in chosen), []).append(row)
        yield from map(tuple, parts.values())

    def swept(self, keys: Sequence[str]) -> list[str]:
        """Return the swept keys below ``keys``."""
        return sorted(key for key in self.crossed if _below(key, keys))


def _below(key: str, prefixes: Sequence[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in prefixes)


@dataclass(frozen=True)
class Subject:
    """What is audited.

    Args:
        sources: The folders of the report.
        rows: Its rows; of a tuned sweep only the confirmed runs are in rows.
        records: The published figures beside them.
        tasks: What the rows show about tasks.
        by: What decides; None if no rows are comparable.
        places: Where models' files are.
    """

    sources: tuple[Source, ...]
    rows: tuple[Row, ...]
    records: tuple[PublishedResult, ...]
    tasks: Tasks
    by: Deciding | None
    places: Sequence[Place] = (SHIPPED,)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The rows that count, by question; a question that one row answers compares nothing."""
        cells = {cell.number: cell for cell in self.tasks.cells}
        by_task: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            if row.counted:
                task = cells[number].task if number in cells else ""
                by_task.setdefault(task, []).append(number)
        return tuple(
            Group(
                task,
                tuple(self.rows[number] for number in numbers),
                tuple(cells[number] for number in numbers if number in cells),
            )
            for task, numbers in by_task.items()
            if len(numbers) > 1
        )

    @property
    def runs(self) -> list[Run]:
        """The runs that count in its groups."""
        return [run for group in self.groups for row in group.rows for run in row.counted]

    @property
    def trials(self) -> dict[str, list[Run]]:
        """The trials of every arm of the tuned sweeps."""
        by_arm: dict[str, list[Run]] = {}
        for source in self.sources:
            for run in source.runs:
                if run.tuning is not None and run.tuning.phase == TRIAL:
                    by_arm.setdefault(run.tuning.arm, []).append(run)
        return by_arm

    @cached_property
    def tuned(self) -> tuple[Tuned, ...]:
        """What each tuned sweep says of its search; one whose record is damaged says nothing."""
        sweeps = []
        for source in self.sources:
            with suppress(KeyError, TypeError, ValueError):
                sweeps.append(trials_of(source.folder))
        return tuple(one for one in sweeps if one is not None)

    @property
    def searched(self) -> frozenset[str]:
        """The keys that were searched for each arm by itself."""
        return frozenset(
            key for runs in self.trials.values() for run in runs for key in values(run)
        )


def values(run: Run) -> Mapping[str, object]:
    """Return what a tuned sweep chose for a run, by key."""
    return {} if run.tuning is None else run.tuning.values


Look = Callable[[Subject], Finding | None]


@dataclass(frozen=True)
class Check:
    """One row of an audit.

    Args:
        key: Its name, for ``report.allow``.
        words: What is held equal, for people.
        known: How it is known.
        finds: The faults of comparisons that it finds.
        look: Looks; None where the question does not arise.
    """

    key: str
    words: str
    known: str
    look: Look
    finds: tuple[str, ...] = ()
