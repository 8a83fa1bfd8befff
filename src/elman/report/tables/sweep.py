"""The table at the end of a sweep, from the jobs' result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from elman.config.run_config import RunConfig
from elman.evaluation.metrics import SHARED_GPU
from elman.sweeps.row import SweepRow

# The loss is the mean over this many optimizer steps; a smaller number is shown beside it.
_LOSS_STEPS = 100
_WIDTH_OF_A_FILE = 160
UNCUT = 400
"""Width of a table in a file: wide enough for one line per entry, so that it can be searched."""


def print_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table, its notes, and where the sweep's folder is."""
    console = wide_console()
    console.print(sweep_table(rows))
    for note in notes(rows):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if folder is not None:
        console.print(f"sweep folder: {folder}", highlight=False, markup=False, soft_wrap=True)


def wide_console(columns: int = _WIDTH_OF_A_FILE) -> Console:
    """Return a console for tables: as wide as the terminal, or ``columns`` wide in a file."""
    console = Console()
    return console if console.is_terminal else Console(width=columns)


def sweep_table(rows: Sequence[SweepRow]) -> Table:
    """Return one line for each job; if there is no result file at all, only how each ended."""
    table = Table(show_edge=False, header_style="bold")
    table.add_column("job", justify="right")
    table.add_column("overrides", overflow="fold")
    with_results = any(row.result for row in rows)
    if with_results:
        for name in ("params", "steps", "loss", "val_bpb", "tok/s"):
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for row in rows:
        numbers = _numbers(row.result or {}) if with_results else []
        table.add_row(str(row.number), Text(" ".join(row.overrides)), *numbers, _status(row))
    return table


def notes(rows: Sequence[SweepRow]) -> list[str]:
    """Return the notes below the lines."""
    unfinished = [str(row.number) for row in rows if row.status == "not started"]
    return [f"not started: {', '.join(unfinished)}"] if unfinished else []


def _numbers(result: Mapping[str, Any]) -> list[str]:
    loss = _shown(result.get("loss"), ".4f")
    count = result.get("loss_steps")
    if result.get("loss") is not None and isinstance(count, int) and count < _LOSS_STEPS:
        loss += f" (last {count})"
    return [
        _shown(result.get("params"), ","),
        _shown(result.get("steps"), ","),
        loss,
        _shown(result.get("val_bpb"), ".4f"),
        _shown(result.get("tok_s"), ",.0f"),
    ]


def computed_by(backend: str, path: str | None, slow: bool) -> str:
    """Return the backend, what computed a packaged baseline, and whether that is a slow path.

    Args:
        backend: Its name.
        path: The package or plain form that computed a packaged baseline; None for other cells.
        slow: Whether plain PyTorch computed it.
    """
    named = f"{backend}: {path}" if path else backend
    return named + (", the slow path" if slow else "")


def _shown(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else "-"


def _status(row: SweepRow) -> str:
    result = row.result or {}
    marks = [mark for mark in ("contended", "slow_path") if result.get(mark)]
    shared = [SHARED_GPU] if (result.get("jobs_per_gpu") or 1) > 1 else []
    return ", ".join([row.status, *(mark.replace("_", " ") for mark in marks), *shared])
