"""Which plots a report has: on its page, and in its paper."""

from __future__ import annotations

from dataclasses import dataclass

from elman.report.comparison.content import Report
from elman.report.comparison.plots import Plot, make_plots
from elman.report.comparison.tasks_page import length_plots


@dataclass(frozen=True)
class Figures:
    """The plots of a report.

    Args:
        swept: What was swept.
        tasks: Accuracy by length of each task.
        curves: Everything else.
    """

    swept: tuple[Plot, ...]
    tasks: tuple[Plot, ...]
    curves: tuple[Plot, ...]

    @property
    def all(self) -> tuple[Plot, ...]:
        """Every plot, in the order of the page."""
        return (*self.tasks, *self.swept, *self.curves)


def figures_of(report: Report) -> Figures:
    """Return the plots of a report."""
    plots = make_plots(report.rows, report.height)
    # A loss of one task says nothing beside that of another.
    several = len(report.tasks.names) > 1
    swept = tuple(plot for plot in plots if plot.shows_keys and not several)
    curves = tuple(plot for plot in plots if not plot.shows_keys)
    return Figures(swept, tuple(length_plots(report.tasks)), curves)
