"""The table of a sweep: what a line says, and what stands under it."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from elman.report.tables.sweep import notes, sweep_table
from elman.sweeps.row import SweepRow

RESULT: dict[str, Any] = {
    "params": 1234567,
    "steps": 1000,
    "loss": 1.23456,
    "loss_steps": 100,
    "tok_s": 98765.4,
}


def lines(*rows: SweepRow) -> list[list[str]]:
    """Return the printed cells, heading first."""
    file = io.StringIO()
    sweep_table(rows).print(Console(width=160, file=file))
    text = file.getvalue().replace("┃", "│").splitlines()
    return [[cell.strip() for cell in line.split("│")] for line in text if "│" in line]


def row(number: int = 1, status: str = "ok", **result: Any) -> SweepRow:
    """Return one job's line."""
    whole = {"status": status, **result} if result else None
    return SweepRow(number, ["model=e1"], status, whole)


def test_a_full_mean_stands_alone_and_a_short_one_says_its_count() -> None:
    heading, full, short = lines(row(**RESULT), row(**(RESULT | {"loss_steps": 99})))
    assert heading == ["job", "overrides", "params", "steps", "loss", "val_bpb", "tok/s", "status"]
    assert full == ["1", "model=e1", "1,234,567", "1,000", "1.2346", "-", "98,765", "ok"]
    assert short[4] == "1.2346 (last 99)"


def test_a_contended_run_is_marked() -> None:
    assert lines(row(**RESULT, contended=True))[1][-1] == "ok, contended"


def test_a_run_on_a_shared_gpu_is_marked() -> None:
    assert lines(row(**RESULT, jobs_per_gpu=4))[1][-1] == "ok, shared GPU"
    assert lines(row(**RESULT, jobs_per_gpu=1))[1][-1] == "ok"


def test_without_results_only_the_ends_are_shown() -> None:
    assert lines(row(), row(2, "crash")) == [
        ["job", "overrides", "status"],
        ["1", "model=e1", "ok"],
        ["2", "model=e1", "crash"],
    ]


def test_overrides_are_text_and_not_markup() -> None:
    assert lines(SweepRow(1, ["data.path=[a,b]"], "ok"))[1][1] == "data.path=[a,b]"


def test_what_never_started_is_listed() -> None:
    rows = [row(), row(2, "not started"), row(3, "not started")]
    assert notes(rows) == ["not started: 2, 3"]
    assert notes(rows[:1]) == []
