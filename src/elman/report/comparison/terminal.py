"""The report in a terminal, and at the end of a sweep of training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from elman.base import consoles, run_files
from elman.base.errors import UserError
from elman.base.units import MEMORY as MEMORY_UNIT
from elman.config.run_config import RunConfig
from elman.report.comparison.blocks import Head, Line, Table, say, terminal_table
from elman.report.comparison.components_text import print_components
from elman.report.comparison.ladder_text import print_ladders
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.tuned_text import print_tuning
from elman.report.comparison.wins_text import print_wins
from elman.report.comparison.write import MARKDOWN, TABLE, write_report
from elman.report.tables.sweep import notes, print_sweep
from elman.sweeps.row import SweepRow

# Columns to leave out, in this order, if the terminal is too narrow.
_SPARE = (
    *("published", "backend", MEMORY_UNIT.name, "bpb", "min"),
    *("per byte", "state bytes", "seeds", "steps", "params"),
)
_SPARE_LAST = ("us a step", "FLOPs", "job", "tok/s", "bytes/s")


def print_report(console: Console, report: Report) -> None:
    """Print the table, with as many columns as fit, and the notes that a reader needs."""
    heads = [Head(one.head, one.numeric) for one in report.columns]
    table = Table(heads, [Line(cells) for cells in report.cells])
    terminal_table(table, _spare(report)).print(console)
    for note in (*report.comparison, *report.problems):
        say(console, note)
    _print_tasks(console, report)
    print_ladders(console, report.ladders)
    print_tuning(console, report.tuned)
    print_components(console, report.components)
    print_wins(console, report.wins)
    for line in report.audit.lines():
        say(console, line)


def _spare(report: Report) -> tuple[str, ...]:
    """Return the columns that may be left out: what does not decide goes before what does."""
    losses = [("loss", "spread"), ("val bpb", "val spread")]
    losses.sort(key=lambda pair: pair[0] == report.height.name)
    (other, its_spread), (_, spread) = losses
    return (*_SPARE, its_spread, spread, *_SPARE_LAST, other)


def _print_tasks(console: Console, report: Report) -> None:
    """Print the verdicts on tasks, and the accuracies by length."""
    for line in report.tasks.verdicts():
        say(console, line)
    for task in report.tasks.names:
        table = report.tasks.by_length(task)
        # The lengths between the shortest and the longest say the least.
        terminal_table(table, table.names[2:-1]).print(console)


def say_where(console: Console, page: Path) -> None:
    """Say where the files of the report are."""
    names = (TABLE, MARKDOWN, run_files.AUDIT, run_files.COMPONENTS, run_files.LADDER)
    others = ", ".join(name for name in names if (page.parent / name).exists())
    say(console, f"report: {page} (and {others})")


def print_training_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table of a sweep, write its report, and say where both are.

    If the report cannot be written, on a full disk for instance, the sweep has not failed.
    """
    assert folder is not None, "training has run folders"
    console = consoles.table_console()
    try:
        report = make_report([folder])
    except UserError as error:
        print_sweep(rows, configs, folder)
        say(console, f"warning: no report: {error}")
        return
    print_report(console, report)
    for note in notes(rows):
        say(console, note)
    say(console, f"sweep folder: {folder}")
    try:
        say_where(console, write_report(report, folder))
    except UserError as error:
        say(console, f"warning: {error}")
