"""What a report says of a tuned sweep."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import Report, make_report
from elman.report.comparison.write import csv_text, markdown_text

from .fake_sweep import FakeSweep

COMMON = 3e-4
SEEDS = (1, 2, 3)
TRIAL_SEED = 0


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return an empty sweep."""
    return FakeSweep(tmp_path / "outputs" / "a_sweep")


def tune(
    sweep: FakeSweep,
    arm: str,
    trials: dict[float, float | None],
    best: list[float],
    common: list[float],
    second: float | None = None,
) -> None:
    """Add an arm: its trials by rate, and the scores of its confirmed runs, with seeds from 1."""
    for number, (lr, score) in enumerate(trials.items()):
        status = "ok" if score is not None else "nan"
        sweep.tuned(arm, "trial", lr, score, seed=TRIAL_SEED, status=status, trial=number)
    known = {lr: score for lr, score in trials.items() if score is not None}
    first, next_best, *_ = sorted(known, key=lambda lr: known[lr])
    for seed, score in zip(SEEDS, best, strict=False):
        sweep.tuned(arm, "best", first, score, seed=seed, common=first == COMMON)
    if second is not None:
        sweep.tuned(arm, "second", next_best, second, seed=1)
    if first != COMMON:
        for seed, score in zip(SEEDS, common, strict=False):
            sweep.tuned(arm, "common", COMMON, score, seed=seed)


def two_arms(sweep: FakeSweep) -> None:
    """Add two arms whose order at the published rate is the reverse of that at each one's best."""
    tune(
        *(sweep, "e1", {COMMON: 1.60, 1e-3: 1.40, 3e-3: 1.46, 1e-2: None}),
        best=[1.300, 1.305, 1.296],
        common=[1.520, 1.524, 1.515],
        second=1.35,
    )
    tune(
        *(sweep, "e42", {COMMON: 1.50, 1e-3: 1.52, 3e-3: 1.55, 1e-2: 1.9}),
        best=[1.420, 1.426, 1.417],
        common=[],
        second=1.44,
    )


def lines_of(report: Report, kind: str) -> list[dict[str, str]]:
    """Return the lines of report.csv of one kind."""
    return [one for one in csv.DictReader(io.StringIO(csv_text(report))) if one["kind"] == kind]


def test_only_runs_of_the_best_setting_are_rows_and_compared(sweep: FakeSweep) -> None:
    two_arms(sweep)
    report = make_report([sweep.folder])
    rows = lines_of(report, "model")
    assert [(row["model"], row["n"], row["runs"]) for row in rows] == [
        ("e1", "3", "3"),
        ("e42", "3", "3"),
    ]
    assert len(lines_of(report, "run")) == 6
    (group,) = report.wins.groups
    assert group.reference.model == "e1"
    line = group.decisive(group.challengers[0])
    assert line.value == pytest.approx(1.421 - 1.300333, abs=1e-6)


def test_while_only_trials_have_run_there_is_no_row_and_nobody_wins(sweep: FakeSweep) -> None:
    sweep.tuned("e1", "trial", COMMON, 1.5, seed=TRIAL_SEED)
    sweep.tuned("e42", "trial", COMMON, 1.6, seed=TRIAL_SEED)
    report = make_report([sweep.folder])
    assert (report.rows, report.wins.groups) == ((), ())
    assert "Table" in page_text(report)
    assert "# Report" in markdown_text(report)


def test_a_trial_that_diverged_is_no_failure_of_the_sweep(sweep: FakeSweep) -> None:
    two_arms(sweep)
    assert "Failures" not in page_text(make_report([sweep.folder]))
    sweep.tuned("e1", "common", COMMON, None, seed=9, status="nan")
    assert "Failures" in page_text(make_report([sweep.folder]))
