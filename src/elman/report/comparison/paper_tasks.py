"""The grid of models and tasks by matplotlib, for a paper: the same data as on the page."""

from __future__ import annotations

from typing import Any

from elman.report.comparison.paper_figures import drawn_bytes, plain
from elman.report.comparison.tasks import AT_CHANCE, SOLVED, TaskCell, Tasks

_INCHES_ACROSS, _INCHES_DOWN, _NAMES, _HEADS = 0.62, 0.3, 1.7, 1.0
_HUES = {SOLVED: "#1f8f6a", AT_CHANCE: "#b3261e"}
_GREY = "0.35"
# Accuracy 0 and 1 lie this far inside a cell of width 1.
_MARGIN = 0.12


def grid_bytes(tasks: Tasks) -> dict[str, bytes]:
    """Return the grid as ``svg`` and as ``pdf``."""
    width = _NAMES + _INCHES_ACROSS * len(tasks.names)
    height = _HEADS + _INCHES_DOWN * len(tasks.models)
    return drawn_bytes(lambda axes: _draw(axes, tasks), width, height)


def _draw(axes: Any, tasks: Tasks) -> None:
    models, names = tasks.models, tasks.names
    for cell in tasks.cells:
        _cell(axes, cell, names.index(cell.task), models.index(cell.model))
    axes.set_xlim(0, len(names))
    axes.set_ylim(len(models), 0)
    turned: Any = {"rotation": 40, "ha": "left", "rotation_mode": "anchor", "fontsize": 7}
    axes.set_xticks([n + 0.3 for n in range(len(names))], [plain(n) for n in names], **turned)
    axes.set_yticks([n + 0.5 for n in range(len(models))], [plain(n) for n in models], fontsize=7)
    axes.tick_params(length=0, bottom=False, labelbottom=False, labeltop=True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cell(axes: Any, cell: TaskCell, left: int, top: int) -> None:
    from matplotlib.patches import Rectangle

    hue = _HUES.get(cell.verdict, _GREY)
    lines = "--" if cell.verdict == AT_CHANCE else "-"
    inside: Any = {"facecolor": "0.96", "edgecolor": hue, "linewidth": 0.8, "linestyle": lines}
    axes.add_patch(Rectangle((left + 0.04, top + 0.06), 0.92, 0.88, **inside))
    axes.annotate(
        cell.verdict, (left + 0.5, top + 0.36), ha="center", va="center", fontsize=5.5, color=hue
    )
    chance = _place(left, cell.chance)
    axes.plot((chance, chance), (top + 0.58, top + 0.86), color="0.5", linewidth=0.7)
    places = [_place(left, seed) for seed in cell.seeds]
    axes.plot(places, [top + 0.72] * len(places), "o", color=hue, markersize=2.6, alpha=0.8)


def _place(left: int, accuracy: float) -> float:
    return left + _MARGIN + (1 - 2 * _MARGIN) * accuracy
