"""The table at the end of a sweep, from the jobs' result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elman.base.consoles import say, table_console
from elman.base.tables import TerminalTable, names, numbers
from elman.config.run_config import RunConfig
from elman.evaluation.metrics import SHARED_GPU
from elman.evaluation.result import RunResult
from elman.sweeps.row import SweepRow

# The loss is the mean over this many optimizer steps; a smaller number is shown beside it.
_LOSS_STEPS = 100
_HEADS = ("params", "steps", "loss", "val_bpb", "tok/s")


def print_sweep(
    rows: Sequence[SweepRow], configs: Sequence[RunConfig], folder: Path | None
) -> None:
    """Print the table, its notes, and where the sweep's folder is."""
    console = table_console()
    sweep_table(rows).print(console)
    for note in notes(rows):
        say(console, note)
    if folder is not None:
        say(console, f"sweep folder: {folder}")


def sweep_table(rows: Sequence[SweepRow]) -> TerminalTable:
    """Return one line for each job; if there is no result file at all, only how each ended."""
    results = [RunResult.read(row.result) for row in rows]
    with_results = any(results)
    measured = _HEADS if with_results else ()
    headings = [*numbers("job"), *names("overrides"), *numbers(*measured), *names("status")]
    table = TerminalTable(headings, ("params", "steps", "val_bpb", "tok/s", "job"))
    for row, result in zip(rows, results, strict=True):
        cells = _cells(result) if with_results else []
        table.add(str(row.number), " ".join(row.overrides), *cells, _status(row, result))
    return table


def notes(rows: Sequence[SweepRow]) -> list[str]:
    """Return the notes below the lines."""
    unfinished = [str(row.number) for row in rows if row.status == "not started"]
    return [f"not started: {', '.join(unfinished)}"] if unfinished else []


def _cells(result: RunResult | None) -> list[str]:
    if result is None:
        return ["-"] * len(_HEADS)
    loss, count = _shown(result.loss, ".4f"), result.loss_steps
    if result.loss is not None and count is not None and count < _LOSS_STEPS:
        loss += f" (last {count})"
    return [
        _shown(result.params, ","),
        _shown(result.steps, ","),
        loss,
        _shown(result.val_bpb, ".4f"),
        _shown(result.tok_s, ",.0f"),
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


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _status(row: SweepRow, result: RunResult | None) -> str:
    if result is None:
        return row.status
    marks = {
        "contended": result.contended,
        "slow path": result.slow_path,
        SHARED_GPU: (result.jobs_per_gpu or 1) > 1,
    }
    return ", ".join([row.status, *(mark for mark, holds in marks.items() if holds)])
