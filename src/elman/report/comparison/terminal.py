"""The report in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from elman.report.comparison.columns import Column
from elman.report.comparison.content import Report
from elman.report.comparison.printable import one_line
from elman.report.comparison.wins_text import print_wins

# Columns to leave out, in this order, if the terminal is too narrow.
_SPARE = (
    *("published", "backend", "GB", "bpb", "min"),
    *("seeds", "steps", "params", "spread", "val bpb"),
)
_FOLDS, _FOLDED = ("model", "published", "backend"), 16


def print_report(console: Console, report: Report) -> None:
    """Print the table, with as many columns as fit, and the notes that a reader needs."""
    columns, left_out = list(report.columns), []
    for head in _SPARE:
        if _width(report, columns) <= console.width:
            break
        left_out.append(head)
        columns = [column for column in columns if column.head != head]
    console.print(_table(report, columns))
    notes = [*report.comparison, *report.problems]
    if left_out:
        notes.append(f"columns left out (terminal too narrow): {', '.join(left_out)}")
    for note in notes:
        say(console, note)
    _print_tasks(console, report)
    print_wins(console, report.wins)


def _print_tasks(console: Console, report: Report) -> None:
    """Print the verdicts on tasks, and the accuracies by length."""
    tasks = report.tasks
    for line in tasks.verdicts():
        say(console, line)
    for task in tasks.names:
        heads, lines = tasks.by_length(task)
        table = Table(show_edge=False, header_style="bold")
        for place, head in enumerate(heads):
            table.add_column(head, justify="right" if place else "left")
        for cells in lines:
            table.add_row(*map(Text, cells))
        console.print(table)


def say_where(console: Console, page: Path) -> None:
    """Say where the files of the report are."""
    say(console, f"report: {page} (and report.csv, report.md)")


def say(console: Console, line: str) -> None:
    """Print one line unchanged."""
    console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)


def _width(report: Report, columns: Sequence[Column]) -> int:
    """Return the width at which nothing in a table is cut."""
    widths, heads = 0, [column.head for column in report.columns]
    for number, column in enumerate(report.columns):
        if column in columns:
            longest = max(len(cells[number]) for cells in [heads, *report.cells])
            widths += 3 + (min(longest, _FOLDED) if column.head in _FOLDS else longest)
    return widths


def _table(report: Report, columns: Sequence[Column]) -> Table:
    table = Table(show_edge=False, header_style="bold")
    for column in columns:
        folds = column.head in _FOLDS
        table.add_column(
            column.head,
            justify="right" if column.numeric else "left",
            no_wrap=not folds,
            overflow="fold",
        )
    kept = [number for number, column in enumerate(report.columns) if column in columns]
    for cells in report.cells:
        table.add_row(*(Text(one_line(cells[number])) for number in kept))
    return table
