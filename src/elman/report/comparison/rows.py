"""The rows of the table: which runs make one, what it is called, and which rows are comparable.

A row has the runs of one experiment, which differ only in their seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from elman.evaluation.result import RunResult
from elman.report.comparison.conditions import MARKS, conditions, experiment, measured, settings
from elman.report.comparison.runs import Run, task_of
from elman.report.comparison.statistics import Spread, spread

NONE = "-"
"""A cell without a value."""
_SHOWN_SETTINGS = 4
_UNTOLD = ("model", "train.seed")
# Without these a label would not say which task it is.
_NAMES_TASK = ("data", "data.task")


@dataclass(frozen=True)
class Row:
    """The runs of one model in one configuration, over its seeds.

    Args:
        model: Name of the model.
        runs: All its runs, failed ones too.
        label: The model, and the settings that distinguish the row from the other rows.
        set: Rows with the same number are comparable; None if no run counts.
        unequal: The conditions in which it differs from the rows of the largest set.
        style: Its line style on the whole page, a number for :mod:`~.ink`.
    """

    model: str
    runs: tuple[Run, ...]
    label: str = ""
    set: int | None = None
    unequal: tuple[str, ...] = ()
    style: int = 0
    _counted: tuple[Run, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A second run with a seed says nothing about the noise between seeds: the first counts.
        first: dict[int | None, Run] = {}
        for run in self.runs:
            if run.counts:
                first.setdefault(run.seed, run)
        object.__setattr__(self, "_counted", tuple(first.values()))

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose numbers are in the means: one for each seed."""
        return self._counted

    @property
    def repeated(self) -> tuple[Run, ...]:
        """The runs that ended well but repeat another run's seed, and so do not count."""
        return tuple(run for run in self.runs if run.counts and run not in self._counted)

    def over_runs(self, number: Callable[[RunResult], float | None]) -> Spread | None:
        """Return a number over the runs that count; None if no run counts, or one lacks it."""
        return spread([number(run.result) for run in self.counted if run.result is not None])

    @property
    def tokens(self) -> frozenset[str]:
        """What tells the tokens of the runs that count from others."""
        return frozenset(run.tokens for run in self.counted)

    def first(self, fact: Callable[[RunResult], object]) -> object:
        """Return the first known value of a fact that is the same in every run."""
        facts = (fact(run.result) for run in self.runs if run.result is not None)
        return next((value for value in facts if value is not None), None)

    @property
    def seeds(self) -> str:
        """The seeds that are in the means."""
        known = [run.seed for run in self.counted]
        return ", ".join(map(str, sorted(seed for seed in known if seed is not None))) or NONE

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions that must agree with those of another row, by name."""
        first = self.counted[0]
        return {"seeds": self.seeds, **conditions(first)}

    @property
    def status(self) -> str:
        """How its runs ended, with the marks of the runs that count."""
        ends = Counter(run.status for run in self.runs)
        if len(self.runs) == 1:
            words = [self.runs[0].status]
        else:
            many = len(ends) > 1 or len(self.runs) > len(self.counted) > 0
            words = [f"{n} {status}" if many else status for status, n in ends.items()]
        return ", ".join([*words, *self.marks])

    @property
    def marks(self) -> list[str]:
        """What a reader must know about how its runs were computed."""
        marks = []
        for mark, holds in MARKS.items():
            count = sum(map(holds, self.runs))
            if count:
                marks.append(mark if count == len(self.runs) else f"{count} {mark}")
        if self.repeated:
            marks.append(f"{len(self.repeated)} repeated")
        return [*marks, *self.unequal_mark]

    @property
    def unequal_mark(self) -> tuple[str, ...]:
        """The mark of a row that is not comparable with the largest set of rows."""
        return (f"unequal {', '.join(self.unequal)}",) if self.unequal else ()

    @property
    def jobs(self) -> str:
        """The numbers of its jobs in their sweep."""
        return ", ".join(str(run.job) for run in self.runs if run.job is not None) or NONE


def make_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows in the order of their first runs, labeled, in comparable sets."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for key, run in _keyed(runs):
        grouped.setdefault(key, []).append(run)
    rows = [Row(group[0].model, tuple(group)) for group in grouped.values()]
    return _numbered(_labeled(rows))


def _keyed(runs: Sequence[Run]) -> Iterator[tuple[tuple[str, str], Run]]:
    """Yield each run with the key of its row.

    A job without a configuration of its own gets that of a job whose overrides differ only in the
    seed. A run without numbers joins the first row that has numbers.
    """
    by_overrides = {
        _experiment_typed(run): experiment(run) for run in runs if run.config and run.overrides
    }
    ways: dict[str, list[str]] = {}
    keys = []
    for run in runs:
        known = run.config is not None
        key = experiment(run) if known else by_overrides.get(_experiment_typed(run))
        key = experiment(run) if key is None else key
        if run.counts:
            ways.setdefault(key, []).append(measured(run))
        keys.append((key, run))
    for key, run in keys:
        first = next(iter(ways.get(key, [])), "")
        yield (key, measured(run) if run.counts else first), run


def _experiment_typed(run: Run) -> str:
    return experiment(replace(run, config=None))


def _labeled(rows: Sequence[Row]) -> list[Row]:
    """Label each row: its model, what its sweep swept, and what differs from rows of that label."""
    set_by_tasks = _given_by_tasks(rows)
    labels = [" ".join([row.model, *_swept(row, set_by_tasks)]) for row in rows]
    by_row = [settings(row.runs[0]) for row in rows]
    for label in [label for label, count in Counter(labels).items() if count > 1]:
        same = [n for n, other in enumerate(labels) if other == label]
        keys = {key for n in same for key in by_row[n]}
        differing = [key for key in sorted(keys) if len({by_row[n].get(key) for n in same}) > 1]
        for n in same:
            shown = [f"{key}={by_row[n].get(key, NONE)}" for key in differing[:_SHOWN_SETTINGS]]
            more = len(differing) - len(shown)
            labels[n] = " ".join([label, *shown, *([f"and {more} more"] if more else [])])
    counts: Counter[str] = Counter()
    for n, label in enumerate(labels):
        counts[label] += 1
        if counts[label] > 1:
            labels[n] = f"{label} #{counts[label]}"
    return [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]


def _swept(row: Row, set_by_tasks: Collection[str]) -> list[str]:
    """Return the swept settings that all its runs share, without the seed and those of tasks.

    The layers of a mixed stack can be typed in several ways.
    """
    first, *others = row.runs
    untold = {*_UNTOLD, *set_by_tasks}
    swept = [(text.partition("=")[0], text) for text in first.swept]
    return [
        text
        for key, text in swept
        if key not in untold and (key == "model.layers" or all(text in run.swept for run in others))
    ]


def _given_by_tasks(rows: Sequence[Row]) -> set[str]:
    """Return the swept keys whose values follow from the task.

    A suite may train one task longer, or on longer rows, than the others. Such a setting says
    nothing beside the name of its task, and a model is called the same for all tasks.
    """
    begun = [row for row in rows if any(run.config is not None for run in row.runs)]
    tasks = {_question(row) for row in begun}
    values: dict[str, dict[str, set[str]]] = {}
    for text in {text for row in begun for run in row.runs for text in run.swept}:
        values[text.partition("=")[0]] = {task: set() for task in tasks}
    for row in begun:
        for run in row.runs:
            overrides = dict(text.partition("=")[::2] for text in run.swept)
            for key, by_task in values.items():
                by_task[_question(row)].add(overrides.get(key, ""))
    return {
        key
        for key, by_task in values.items()
        if key not in _NAMES_TASK and len(tasks) > 1 and max(map(len, by_task.values())) == 1
    }


def _numbered(rows: Sequence[Row]) -> list[Row]:
    """Give comparable rows the same number, and name what the others differ in."""
    conditions = [row.conditions if row.counted else None for row in rows]
    sizes = Counter(tuple(one.values()) for one in conditions if one is not None)
    numbers = {key: number for number, key in enumerate(sizes, 1)}
    # A task is another question, not an unequal condition: rows are marked within their task.
    largest = {
        question: Counter(
            tuple(one.values())
            for row, one in zip(rows, conditions, strict=True)
            if one is not None and _question(row) == question
        ).most_common(1)[0][0]
        for question in {_question(row) for row in rows if row.counted}
    }
    numbered = []
    for row, one in zip(rows, conditions, strict=True):
        if one is None:
            numbered.append(replace(row, set=None))
            continue
        pairs = zip(one.items(), largest[_question(row)], strict=True)
        unequal = tuple(name for (name, value), most in pairs if value != most)
        numbered.append(replace(row, set=numbers[tuple(one.values())], unequal=unequal))
    return numbered


def _question(row: Row) -> str:
    """Return the task of a row; empty for text."""
    return next((task for task in map(task_of, row.runs) if task), "")
