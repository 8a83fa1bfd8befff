"""The page of probes: a summary, the pictures of every measurement, and all definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elman.probe.result import DEFINITIONS, Loss
from elman.report.comparison.blocks import (
    Block,
    Entry,
    Head,
    Item,
    Items,
    Legend,
    Line,
    Pairs,
    Table,
    Text,
)
from elman.report.comparison.draw import Plot
from elman.report.comparison.page import figures_of, rendered
from elman.report.probe.pictures import loss_plots
from elman.report.probe.views import NONE, View, number, size

INTERVAL = (
    "An interval holds 95 % of 1,000 resamples of the documents (bootstrap): it says how far other "
    "documents of this text would move the number, not another seed of training."
)


def page_text(views: Sequence[View]) -> str:
    """Return the whole page."""
    names = ", ".join(view.name for view in views)
    return rendered("probe", names, [*_facts(views)], blocks_of(views))


def plots_of(views: Sequence[View]) -> dict[str, list[Plot]]:
    """Return the plots of each block, by its title."""
    return {"How far back the context helps": loss_plots(views)}


def blocks_of(views: Sequence[View]) -> Iterator[Block]:
    """Yield the blocks of the page, in their order."""
    yield Block("Summary", [summary(views), Text(INTERVAL, "caption")])
    yield Block("Problems", _problems(views))
    legend = [Entry([view.row], view.row, view.name) for view in views]
    for title, plots in plots_of(views).items():
        yield Block(title, [Legend(legend), *figures_of(plots)] if plots else [])
    yield Block("What each number is", [Pairs(list(DEFINITIONS.items()))])


def summary(views: Sequence[View]) -> Table:
    """Return a table with a line for each run."""
    heads = [
        Head("run", css="k"),
        Head("params", True),
        Head("trained length", True, "bytes of the rows that it was trained on"),
        Head("bits per byte", True, DEFINITIONS["loss.whole"]),
        Head("reset", True, DEFINITIONS["loss.whole_reset"]),
        Head("useful length", True, DEFINITIONS["loss.useful_length"]),
        Head("interval", css="w"),
    ]
    return Table(heads, [_line(view) for view in views], "sorted")


def _line(view: View) -> Line:
    result = view.result
    loss = result.loss or Loss()
    ends = loss.useful_length_low, loss.useful_length_high
    cells = [
        view.name,
        f"{result.params:,}",
        size(result.trained_length),
        number(loss.whole),
        number(loss.whole_reset),
        size(loss.useful_length),
        NONE if None in ends else " to ".join(map(size, ends)),
    ]
    return Line(cells, view.row, style=view.row)


def _problems(views: Sequence[View]) -> list[Items]:
    items = [
        Item(problem, lead=view.name, behind=part)
        for view in views
        for part, problem in view.result.problems.items()
    ]
    return [Items(items)] if items else []


def _facts(views: Sequence[View]) -> Iterator[str]:
    for view in views:
        result = view.result
        window = "" if result.window is None else f"; attends to {result.window:,} bytes"
        yield (
            f"{view.name}: {result.checkpoint}; {result.documents} documents of "
            f"{result.length:,} bytes of {result.text}{window}; {result.device}, {result.precision}"
        )
