"""The report in a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from elman.base import consoles
from elman.base.tables import Heading, TerminalTable, names, numbers
from elman.base.units import MEMORY as MEMORY_UNIT
from elman.report.comparison.content import Report
from elman.report.comparison.escape import one_line
from elman.report.comparison.wins_text import print_wins

# Columns to leave out, in this order, if the terminal is too narrow.
_SPARE = (
    *("published", "backend", MEMORY_UNIT.name, "bpb", "min"),
    *("seeds", "steps", "params"),
)
_SPARE_LAST = ("us a step", "FLOPs", "job", "tok/s")


def print_report(console: Console, report: Report) -> None:
    """Print the table, with as many columns as fit, and the notes that a reader needs."""
    _table(report).print(console)
    for note in (*report.comparison, *report.problems):
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
        # The lengths between the shortest and the longest say the least.
        table = TerminalTable([*names(heads[0]), *numbers(*heads[1:])], heads[2:-1])
        for cells in lines:
            table.add(*cells)
        table.print(console)


def say_where(console: Console, page: Path) -> None:
    """Say where the files of the report are."""
    say(console, f"report: {page} (and report.csv, report.md)")


def say(console: Console, line: str) -> None:
    """Print a text as one line."""
    consoles.say(console, one_line(line))


def _table(report: Report) -> TerminalTable:
    # What does not decide goes before what does.
    losses = [("loss", "spread"), ("val bpb", "val spread")]
    losses.sort(key=lambda pair: pair[0] == report.height.name)
    (other, its_spread), (_, spread) = losses
    spare = (*_SPARE, its_spread, spread, *_SPARE_LAST, other)
    table = TerminalTable([Heading(one.head, one.numeric) for one in report.columns], spare)
    for cells in report.cells:
        table.add(*map(one_line, cells))
    return table
