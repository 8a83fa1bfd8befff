"""What a probe prints and writes: a table, the page, and the figures for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from elman.base.consoles import say, table_console
from elman.base.disk import say_unwritten
from elman.base.whole_file import put_text
from elman.config.run_config import RunConfig
from elman.report.comparison.blocks import terminal_table
from elman.report.probe.page import page_text, summary
from elman.report.probe.views import View, views_of
from elman.report.tables.sweep import print_sweep
from elman.sweeps.row import SweepRow

PAGE = "probe.html"


def print_and_write(console: Console, views: Sequence[View], folder: Path) -> bool:
    """Print the summary of some probes and write their page; return whether it was written."""
    terminal_table(summary(views)).print(console)
    for view in views:
        for part, problem in view.result.problems.items():
            say(console, f"{view.name}: {part} has no numbers: {problem}")
    try:
        put_text(folder / PAGE, page_text(views), several=True, errors="replace")
    except OSError as error:
        say_unwritten(folder / PAGE, error)
        return False
    say(console, f"page: {folder / PAGE}")
    return True


def print_probe_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table at the end of a sweep of probes, and write one page of all of them."""
    assert folder is not None, "a probe has a folder"
    if failed := [row for row in rows if row.result is None]:
        print_sweep(failed, configs, None)
    if views := views_of([row.result for row in rows if row.result is not None]):
        print_and_write(table_console(), views, folder)
