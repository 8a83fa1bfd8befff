"""What the runs of a report show about tasks: who solved which, how far it reaches, its style."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from elman.base.errors import UserError
from elman.data.tasks.blind import chance
from elman.published import PublishedResult
from elman.report.comparison.blocks import Head, Line, Table, table
from elman.report.comparison.ink import COLORS, DASHES
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import task_of
from elman.sections.tasks import TASKS

SOLVED_ABOVE, CHANCE_WITHIN = 0.99, 0.05
SOLVED, NOT_SOLVED, AT_CHANCE, NO_RESULT = "solved", "not solved", "at chance", "no result"
CHANCE = "chance (the best blind guess)"
TITLE, PUBLISHED = "What each can compute", "Published accuracies beside ours"
METHOD = (
    f"Solved: every seed answers more than {SOLVED_ABOVE:.0%} right at the trained length. At "
    f"chance: no seed is more than {CHANCE_WITHIN:g} above the best blind guess on rows of that "
    "length: always the same answer, or the most frequent one at each position, or after each "
    "present symbol, whichever is right most often. Everything else is not solved, however close. "
    "A verdict is about these runs: another learning rate, more steps or more seeds may end "
    "otherwise, and not solved does not mean that the cell cannot."
)
_NOT_DIFFICULTY = ("task", "lengths", "val_rows", "test_rows")


@dataclass(frozen=True)
class TaskCell:
    """One model on one task.

    Args:
        number: Number of its row in the table.
        row: The row.
        model: What the model is called in the grid.
        task: What the task is called in the grid.
        length: The trained length.
        chances: Accuracy of the best blind guess, by length.
        seeds: Accuracy at the trained length of each run that counts, ascending.
        by_length: Accuracies of each run that counts, by length.
    """

    number: int
    row: Row
    model: str
    task: str
    length: int
    chances: Mapping[int, float]
    seeds: tuple[float, ...]
    by_length: tuple[Mapping[int, float], ...]

    @property
    def chance(self) -> float:
        """Accuracy of the best blind guess at the trained length."""
        return self.chances[self.length]

    @property
    def verdict(self) -> str:
        """Whether the task is solved; see :data:`METHOD`."""
        if not self.seeds:
            return NO_RESULT
        if self.seeds[0] > SOLVED_ABOVE and len(self.seeds) == len(self.row.runs):
            return SOLVED
        return AT_CHANCE if self.seeds[-1] <= self.chance + CHANCE_WITHIN else NOT_SOLVED

    @property
    def summary(self) -> str:
        """The verdict with the numbers behind it."""
        if not self.seeds:
            return f"{self.verdict}: {self.row.status}"
        low, high = self.seeds[0], self.seeds[-1]
        spread = f", {low:.3f} to {high:.3f}, n={len(self.seeds)}" if len(self.seeds) > 1 else ""
        failed = len(self.row.runs) - len(self.seeds)
        lost = f", {failed} of {len(self.row.runs)} runs do not count" if failed else ""
        return f"{self.verdict}: {fmean(self.seeds):.3f}{spread}, chance {self.chance:.3f}{lost}"

    def mean_at(self, length: int) -> float | None:
        """Return the mean accuracy at a length, or None if no run was tested there."""
        accuracies = [one[length] for one in self.by_length if length in one]
        return fmean(accuracies) if accuracies else None

    @property
    def lengths(self) -> list[int]:
        """The tested lengths."""
        return sorted({length for one in self.by_length for length in one})


@dataclass(frozen=True)
class Tasks:
    """All models on all tasks of a report; ``models`` and ``names`` in the order of the rows."""

    cells: tuple[TaskCell, ...] = ()

    @property
    def models(self) -> list[str]:
        """The models, as lines of the grid."""
        return list(dict.fromkeys(cell.model for cell in self.cells))

    @property
    def names(self) -> list[str]:
        """The tasks, as columns of the grid."""
        return list(dict.fromkeys(cell.task for cell in self.cells))

    def of(self, model: str, task: str) -> TaskCell | None:
        """Return one cell of the grid."""
        pairs = ((cell.model, cell.task) for cell in self.cells)
        return dict(zip(pairs, self.cells, strict=True)).get((model, task))

    def verdicts(self) -> list[str]:
        """Return a line for each model: what it solved, and what not."""
        return [self._verdict(model) for model in self.models]

    def _verdict(self, model: str) -> str:
        own = [cell for cell in self.cells if cell.model == model]
        seeds = [len(cell.row.runs) for cell in own]
        count = f"{min(seeds)}" if len(set(seeds)) == 1 else f"{min(seeds)} to {max(seeds)}"
        solved = [cell for cell in own if cell.verdict == SOLVED]
        parts = [f"solved {len(solved)} of {len(own)} tasks at the trained length"]
        parts[0] += f" ({count} seed{'' if count == '1' else 's'})"
        parts[0] += f": {_named(solved)}" if solved else ""
        for verdict in (NOT_SOLVED, AT_CHANCE, NO_RESULT):
            cells = [cell for cell in own if cell.verdict == verdict]
            if cells:
                parts.append(f"{verdict}: {_named(cells, numbers=verdict != NO_RESULT)}")
        return f"{model}: {'; '.join(parts)}"

    def grid(self) -> Table:
        """Return the grid in words."""
        lines = []
        for model in self.models:
            cells = [self.of(model, task) for task in self.names]
            lines.append([model, *("-" if cell is None else cell.summary for cell in cells)])
        return table(["model", *self.names], lines)

    def by_length(self, task: str) -> Table:
        """Return one task's mean accuracies by length."""
        own = [cell for cell in self.cells if cell.task == task]
        lengths = sorted({length for cell in own for length in cell.lengths})
        lines = []
        for cell in own:
            means = [cell.mean_at(length) for length in lengths]
            lines.append([cell.model, *("-" if m is None else f"{m:.3f}" for m in means)])
        chances = self.chances(task)
        lines.append([CHANCE, *(f"{chances[length]:.3f}" for length in lengths)])
        heads = [Head(task), *(Head(f"{n:,}", number=True) for n in lengths)]
        return Table(heads, [Line(line) for line in lines])

    def chances(self, task: str) -> dict[int, float]:
        """Return the accuracy of the best blind guess at each length at which a task was tested."""
        own = [cell for cell in self.cells if cell.task == task]
        return {length: cell.chances[length] for cell in own for length in cell.lengths}

    def beside_published(self, records: Sequence[PublishedResult]) -> Table:
        """Return a table that puts published accuracies beside ours."""
        lines = []
        for record in records:
            figures = record.figures
            if figures.accuracy is None or figures.length is None:
                continue
            ours = "-"
            for cell in self.cells:
                if cell.row.model == figures.model and _task(cell.row) == figures.task:
                    mean = cell.mean_at(figures.length)
                    ours = "not tested there" if mean is None else f"{mean:.3f}"
            place = f"{figures.task} at {figures.length:,}"
            published = f"{figures.accuracy:.3f}{' (withdrawn)' if figures.withdrawn else ''}"
            differs = f"{record.protocol.text}; {record.caveats}"
            lines.append([figures.model, place, ours, published, differs])
        return table(["model", "task", "ours", "published", "what differs"], lines)

    def in_words(self, records: Sequence[PublishedResult]) -> list[str | Table]:
        """Return all of it as paragraphs and tables; empty if no run learned a task."""
        if not self.cells:
            return []
        parts: list[str | Table] = [f"{TITLE}:", *self.verdicts(), METHOD, self.grid()]
        parts += [self.by_length(task) for task in self.names]
        beside = self.beside_published(records)
        if beside.lines:
            parts += [f"{PUBLISHED}:", beside]
        return parts


def _named(cells: Sequence[TaskCell], *, numbers: bool = False) -> str:
    return ", ".join(
        f"{cell.task} ({fmean(cell.seeds):.2f}, chance {cell.chance:.2f})" if numbers else cell.task
        for cell in cells
    )


def _task(row: Row) -> str:
    return next(filter(None, map(task_of, row.runs)), "")


def make_tasks(rows: Sequence[Row]) -> Tasks:
    """Return what the rows show about tasks; empty if none learned one."""
    learned = [(number, row) for number, row in enumerate(rows) if _task(row)]
    levels = {number: _difficulty(row) for number, row in learned}
    forms: dict[str, dict[str, None]] = {}
    for number, row in learned:
        forms.setdefault(_task(row), {})[json.dumps(levels[number], sort_keys=True)] = None
    names = {
        number: _task(row)
        if len(forms[_task(row)]) == 1
        else _full_name(_task(row), levels[number])
        for number, row in learned
    }
    shared: dict[str, set[str]] = {}
    for number, row in learned:
        words = set(_words(row))
        shared[names[number]] = shared.get(names[number], words) & words
    cells = [_cell(number, row, names[number], shared[names[number]]) for number, row in learned]
    return Tasks(tuple(cells))


def _words(row: Row) -> list[str]:
    """Return what a row's label says besides the task; the model comes first."""
    return [word for word in row.label.split() if not word.startswith("data=")]


def _cell(number: int, row: Row, task: str, shared: set[str]) -> TaskCell:
    """Return a cell; settings that all rows of its task share belong to the task, not the model."""
    config = next(run.config for run in row.runs if run.config is not None)
    length = int(config["train"]["chunk_size"])
    accuracies, seeds = [], []
    chances: dict[int, float] = {}
    for result in (run.result for run in row.counted if run.result is not None):
        by_length = {int(key): v for key, v in result.accuracy_by_length.items() if v is not None}
        accuracies.append(by_length)
        chances |= {int(key): v for key, v in result.data.chance_by_length.items() if v is not None}
        at_trained = by_length.get(length, result.accuracy)
        seeds += [] if at_trained is None else [at_trained]
    for at in {length, *(at for one in accuracies for at in one)} - chances.keys():
        chances[at] = _chance(config["data"], at)
    model, *others = _words(row)
    own = [model, *(word for word in others if word not in shared)]
    return TaskCell(
        number, row, " ".join(own), task, length, chances, tuple(sorted(seeds)), tuple(accuracies)
    )


def _chance(data: Mapping[str, Any], length: int) -> float:
    """Return the best blind guess of a task whose run has not recorded it.

    A run of an earlier version recorded one over the number of answers.
    """
    try:
        return chance(TASKS[str(data.get("task"))].model_validate(dict(data)), length)
    except (KeyError, ValueError, UserError):
        return 0.0  # a task that this version does not know: no run of it is at chance


def _difficulty(row: Row) -> dict[str, Any]:
    config = next(run.config for run in row.runs if run.config is not None)
    data = {key: v for key, v in config["data"].items() if key not in _NOT_DIFFICULTY}
    return {**data, "length": config["train"].get("chunk_size")}


def _full_name(task: str, difficulty: Mapping[str, Any]) -> str:
    return " ".join([task, *(f"{key}={value}" for key, value in difficulty.items())])


def styled(rows: Sequence[Row]) -> list[Row]:
    """Return rows with their line styles.

    Without tasks a row has the style of its number. On tasks the rows of one model have one color,
    and their dashes tell several tasks apart.
    """
    tasks = make_tasks(rows)
    if not tasks.names:
        return [replace(row, style=number) for number, row in enumerate(rows)]
    known = {
        cell.number: _style_of(style_of_model(tasks, cell.model), tasks.names.index(cell.task))
        for cell in tasks.cells
    }
    others = [number for number in range(len(rows)) if number not in known]
    known |= {number: len(tasks.models) + place for place, number in enumerate(others)}
    return [replace(row, style=known[number]) for number, row in enumerate(rows)]


def style_of_model(tasks: Tasks, model: str) -> int:
    """Return the style of a model's curves where a picture shows one task."""
    return tasks.models.index(model)


def _style_of(model: int, task: int) -> int:
    """Return the style of a model's row of a task: the model's color, with further dashes."""
    return model % COLORS + COLORS * ((model // COLORS + task) % DASHES)
