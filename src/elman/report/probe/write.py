"""What a probe prints and writes: a table, the page, and the figures for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from elman.base.consoles import say, table_console
from elman.base.disk import say_unwritten
from elman.base.whole_file import put_text
from elman.config.run_config import RunConfig
from elman.report.comparison.blocks import Line, Table, latex_table, terminal_table
from elman.report.probe.page import INTERVAL, page_text, plots_of, summary
from elman.report.probe.views import View, views_of
from elman.report.tables.sweep import print_sweep
from elman.sweeps.row import SweepRow

PAGE = "probe.html"


_OF_TABLE = 9
"""Columns of the summary that a page of paper has room for."""
_SPARE = (
    *("interval", "trained length", "params", "state bytes", "reset", "grow / die"),
    *("costliest layer", "recall", "useful length", "longest half-life"),
)
"""Columns that a narrow terminal leaves out, the least important one first."""


def print_and_write(console: Console, views: Sequence[View], folder: Path, *, paper: bool) -> bool:
    """Print the summary of some probes and write their page; return whether it was written.

    Args:
        console: Where it is printed.
        views: The probed runs.
        folder: Where the page goes.
        paper: Whether the figures and the table of a paper are written, too.
    """
    terminal_table(summary(views), _SPARE).print(console)
    for view in views:
        for part, problem in view.result.problems.items():
            say(console, f"{view.name}: {part} has no numbers: {problem}")
    try:
        put_text(folder / PAGE, page_text(views), several=True, errors="replace")
    except OSError as error:
        say_unwritten(folder / PAGE, error)
        return False
    say(console, f"page: {folder / PAGE}")
    if paper:
        say(console, f"paper: {_written_paper(views, folder)} (figures, and a document of all)")
    return True


def _written_paper(views: Sequence[View], folder: Path) -> Path:
    """Write the figures and the table; return their folder."""
    from elman.report.comparison.paper import files_of, write_paper

    whole = summary(views)
    heads = whole.heads[:_OF_TABLE]
    lines = [Line(line.cells[:_OF_TABLE]) for line in whole.lines]
    meanings = " ".join(f"{head.name}: {head.definition}." for head in heads if head.definition)
    table = latex_table(Table(heads, lines), f"{meanings} {INTERVAL}", "tab:probes")
    plots = list(plots_of(views))
    return write_paper(
        files_of(table, [(one.figure, f"{one.title}. {one.caption}") for one in plots]),
        folder,
        "hydra.run.dir",
    )


def print_probe_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table at the end of a sweep of probes, and write one page of all of them."""
    assert folder is not None, "a probe has a folder"
    if failed := [row for row in rows if row.result is None]:
        print_sweep(failed, configs, None)
    if views := views_of([row.result for row in rows if row.result is not None]):
        paper = any(config.probe and config.probe.paper for config in configs)
        print_and_write(table_console(), views, folder, paper=paper)
