"""The grid of models and tasks as SVG: a cell for each pair, a dot for each seed."""

from __future__ import annotations

import math

from elman.report.comparison.svg import escape
from elman.report.comparison.tasks import AT_CHANCE, NO_RESULT, NOT_SOLVED, SOLVED, TaskCell, Tasks

_WIDE, _HIGH = 76, 34
_MARGIN, _RADIUS = 8, 3.4
_LETTER = 6.7
"""Width of a letter of a name, pixels; most are narrower."""
_SLOPE = 35
"""Of the tasks' names, degrees."""
_CLASSES = {SOLVED: "solved", NOT_SOLVED: "unsolved", AT_CHANCE: "chance", NO_RESULT: "none"}


def task_grid(tasks: Tasks) -> str:
    """Return the grid. In a cell a dot's place is its accuracy, from 0 left to 1 right."""
    left, top, right = _room(tasks)
    width = left + _WIDE * len(tasks.names) + right
    height = top + _HIGH * len(tasks.models) + 8
    parts = []
    for column, task in enumerate(tasks.names):
        x = left + _WIDE * column + 14
        parts.append(
            f'<text class="name" transform="translate({x} {top - 8}) rotate({-_SLOPE})">'
            f"{escape(task)}</text>"
        )
    for line, model in enumerate(tasks.models):
        y = top + _HIGH * line
        parts.append(
            f'<text class="name" x="{left - 8}" y="{y + _HIGH / 2 + 4:.1f}" text-anchor="end">'
            f"{escape(model)}</text>"
        )
        for column, task in enumerate(tasks.names):
            cell = tasks.of(model, task)
            if cell is not None:
                parts.append(_cell(cell, left + _WIDE * column, y))
    return (
        f'<svg class="tasks" viewBox="0 0 {width} {height}" style="width: {width}px" '
        f'role="img" aria-label="models and tasks">{"".join(parts)}</svg>'
    )


def _room(tasks: Tasks) -> tuple[int, int, int]:
    """Return the pixels that the names need: left of the cells, above and right of them."""
    model = max(map(len, tasks.models)) * _LETTER
    task = max(map(len, tasks.names)) * _LETTER
    slope = math.radians(_SLOPE)
    across, up = task * math.cos(slope), task * math.sin(slope)
    return round(model) + 16, round(up) + 26, max(8, round(across) + 22 - _WIDE)


def _cell(cell: TaskCell, x: float, y: float) -> str:
    inside = _WIDE - 2 * _MARGIN - 4
    chance = x + 2 + _MARGIN + inside * cell.chance
    dots = "".join(
        f'<circle cx="{x + 2 + _MARGIN + inside * seed:.1f}" cy="{y + _HIGH - 10:.1f}" '
        f'r="{_RADIUS}" />'
        for seed in cell.seeds
    )
    words = cell.verdict
    return (
        f'<g class="task {_CLASSES[cell.verdict]}" data-row="{cell.number}">'
        f"<title>{escape(f'{cell.model}, {cell.task}: {cell.told}')}</title>"
        f'<rect x="{x + 2}" y="{y + 2}" width="{_WIDE - 4}" height="{_HIGH - 4}" rx="3" />'
        f'<path d="M{chance:.1f} {y + _HIGH - 15:.1f}v10" />'
        f'<text x="{x + _WIDE / 2:.1f}" y="{y + 14}" text-anchor="middle">{words}</text>'
        f"{dots}</g>"
    )
