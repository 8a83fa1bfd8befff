"""Which line style a row has on the whole page: in its tables, legends and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elman.report.comparison.rows import Row
from elman.report.comparison.svg import COLOURS, DASHES
from elman.report.comparison.tasks import Tasks, make_tasks


def styled(rows: Sequence[Row]) -> list[Row]:
    """Return rows with their line styles.

    Without tasks a row has the style of its number. On tasks the rows of one model have one colour,
    and their dashes tell several tasks apart.
    """
    tasks = make_tasks(rows)
    if not tasks.names:
        return [replace(row, style=number) for number, row in enumerate(rows)]
    known = {
        cell.number: _of(style_of_model(tasks, cell.model), tasks.names.index(cell.task))
        for cell in tasks.cells
    }
    others = [number for number in range(len(rows)) if number not in known]
    known |= {number: len(tasks.models) + place for place, number in enumerate(others)}
    return [replace(row, style=known[number]) for number, row in enumerate(rows)]


def style_of_model(tasks: Tasks, model: str) -> int:
    """Return the style of a model's curves where a picture shows one task."""
    return tasks.models.index(model)


def _of(model: int, task: int) -> int:
    """Return the style of a model's row of a task: the model's colour, with further dashes."""
    return model % COLOURS + COLOURS * ((model // COLOURS + task) % DASHES)
