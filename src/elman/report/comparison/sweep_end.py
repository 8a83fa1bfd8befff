"""The end of a sweep of training runs: its table, and its report beside its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elman.base.consoles import table_console
from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.report.comparison.content import make_report
from elman.report.comparison.files import write_report
from elman.report.comparison.terminal import print_report, say, say_where
from elman.report.tables.sweep import notes, print_sweep
from elman.sweeps.row import SweepRow


def print_training_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table of a sweep, write its report, and say where both are.

    If the report cannot be written, on a full disk for instance, the sweep has not failed.
    """
    assert folder is not None, "training has run folders"
    console = table_console()
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
