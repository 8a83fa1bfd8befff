"""What the cells can compute, on the page and in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from elman.report.comparison.conditions import run_marks
from elman.report.comparison.content import Report
from elman.report.comparison.curves import BANDS, Curve, over_seeds
from elman.report.comparison.draw import draw_tasks
from elman.report.comparison.escape import escape
from elman.report.comparison.ink import svg
from elman.report.comparison.pictures import Axis, Lines, axis
from elman.report.comparison.plots import Plot
from elman.report.comparison.tasks import METHOD, Tasks, style_of_model

TITLE = "What each can compute"
PUBLISHED = "Published accuracies beside ours"
GRID = (
    "One cell for each model and task, one dot for each seed: its accuracy at the trained length, "
    "from 0 on the left to 1 on the right; the stroke is chance, the best blind guess."
)
_CURVE = (
    "Share of right answers on rows of each tested length, by the weights at the end of training. "
    "The dashed line is chance: the best blind guess on rows of that length."
)


def length_plots(tasks: Tasks) -> list[Plot]:
    """Return a plot of accuracy by length for each task that was tested."""
    return [_plot(tasks, task) for task in tasks.names if _curves(tasks, task)]


def legend_of_models(tasks: Tasks) -> dict[str, tuple[int, list[int]]]:
    """Return, for each model that has a curve of accuracy by length, its style and its rows."""
    tested = dict.fromkeys(cell.model for cell in tasks.cells if cell.lengths)
    return {
        model: (
            style_of_model(tasks, model),
            [cell.number for cell in tasks.cells if cell.model == model],
        )
        for model in tested
    }


def tasks_html(report: Report, figure: str) -> str:
    """Return what the section of the page holds; empty if no run learned a task.

    Args:
        report: The report.
        figure: The plots of accuracy by length with their legend, as they stand on the page.
    """
    tasks = report.tasks
    if not tasks.cells:
        return ""
    verdicts = "".join(f"<li>{escape(line)}</li>" for line in tasks.verdicts())
    return (
        f'<ul class="wins">{verdicts}</ul><p class="caption">{escape(METHOD)}</p>'
        f'<figure class="wide"><div class="scroll">{_grid(tasks)}</div>'
        f"<figcaption>{escape(GRID)}</figcaption></figure>{figure}"
    )


def _grid(tasks: Tasks) -> str:
    drawing = draw_tasks(tasks)
    return svg(drawing, f'style="width: {drawing.width:g}px"')


def task_tables(report: Report) -> list[str | tuple[list[str], list[list[str]]]]:
    """Return the same in words: lines, and tables as headings with their lines."""
    tasks = report.tasks
    if not tasks.cells:
        return []
    parts: list[str | tuple[list[str], list[list[str]]]] = [f"{TITLE}:", *tasks.verdicts(), METHOD]
    parts.append(tasks.grid())
    parts += [tasks.by_length(task) for task in tasks.names]
    heads, lines = tasks.beside_published(report.published.records)
    if lines:
        parts += [f"{PUBLISHED}:", (heads, lines)]
    return parts


def _plot(tasks: Tasks, task: str) -> Plot:
    curves = _curves(tasks, task)
    drawn = over_seeds(curves)
    x = axis("positions of a row", [float(c.x[-1]) for c in curves], from_zero=True)
    title, floor = f"Accuracy by length: {task}", tuple(sorted(tasks.chances(task).items()))
    picture = Lines(f"task-{_name(task)}", title, drawn, x, _Y, dotted=True, floor=floor)
    caption = _CURVE + (f" {BANDS}" if any(curve.band for curve in drawn) else "")
    heads, lines = tasks.by_length(task)
    return Plot(picture, caption, tuple(heads), tuple(map(tuple, lines)))


_Y = Axis("share of right answers", 0.0, 1.04)


def _curves(tasks: Tasks, task: str) -> list[Curve]:
    found = []
    for cell in (cell for cell in tasks.cells if cell.task == task):
        for run, accuracies in zip(cell.row.counted, cell.by_length, strict=True):
            if accuracies:
                lengths = sorted(accuracies)
                x = np.array(lengths, dtype=np.float64)
                y = np.array([accuracies[length] for length in lengths])
                name = cell.model + (f", seed {run.seed}" if len(cell.row.runs) > 1 else "")
                curve = Curve(cell.number, name, True, x, y, run_marks(run), counts=True)
                found.append(replace(curve, style=style_of_model(tasks, cell.model)))
    return found


def _name(task: str) -> str:
    """Return a task's name as part of an SVG's id."""
    return "".join(sign if sign.isalnum() else "-" for sign in task)
