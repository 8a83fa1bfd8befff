"""``mode=report`` of a sweep whose launcher runs still, or was killed: the folders say it all."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.runs.folder import RunLock

from .fake_sweep import FakeSweep, make_run

Report = Callable[[Path], tuple[list[str], list[str]]]
INTERRUPTED = json.dumps({"status": "interrupted", "steps": 17})


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Report:
    """Return ``report(folder)``: the statuses of its runs, and the lines under the table."""
    monkeypatch.chdir(tmp_path)

    def run(folder: Path) -> tuple[list[str], list[str]]:
        assert main(["mode=report", f"report.dir={folder}"]) == ExitStatus.OK
        table = list(csv.DictReader((folder / "report.csv").open()))
        statuses = [line["status"] for line in table if line["kind"] == "run"]
        return statuses, capfd.readouterr().out.splitlines()

    return run


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a sweep that has not written its end."""
    return FakeSweep(tmp_path / "sweep", ended=None)


def test_a_killed_launcher_is_named_with_how_to_go_on(report: Report, sweep: FakeSweep) -> None:
    sweep.job("model=e1", status="not started")
    sweep.job("model=e42", status="not started", no_result=True)
    sweep.job("model=e68", status="not started", started=False)
    statuses, lines = report(sweep.folder)
    assert statuses == ["ok", "unfinished", "not started"]
    killed = "job 2 (02_e42, seed 42): unfinished: no result.json: it was killed before it could"
    assert any(line.startswith(killed) for line in lines)
    again = f"to resume it: elman -m sweep.resume={sweep.folder}"
    assert f"{sweep.folder}: its launcher was killed before the end; {again}" in lines


def test_who_holds_its_folder_runs(report: Report, sweep: FakeSweep) -> None:
    fresh = sweep.job("model=e42", status="not started", no_result=True)
    taken_up = sweep.job("model=e68", status="not started")
    (taken_up / "result.json").write_text(INTERRUPTED)
    os.utime(taken_up / "result.json", (1, 1))
    ending = sweep.job("model=e63", status="not started")
    with RunLock(fresh), RunLock(taken_up), RunLock(ending):
        # The process that takes itself apart has written its result already.
        (ending / "result.json").write_text(INTERRUPTED)
        statuses, lines = report(sweep.folder)
    assert statuses == ["running", "running", "interrupted"]
    assert f"job 1 (01_e42, seed 42): running: process {os.getpid()} runs in it" in lines
    assert not any("not started" in line for line in lines)
    assert report(sweep.folder)[0] == ["unfinished", "interrupted", "interrupted"]


@pytest.mark.parametrize("started", [True, False], ids=["begun", "nothing left"])
def test_a_job_of_which_only_its_start_is_known_is_unfinished(
    report: Report, sweep: FakeSweep, started: bool
) -> None:
    sweep.job("model=e1", status="running", started=started, no_result=True)
    assert report(sweep.folder)[0] == ["unfinished"]


def test_while_its_launcher_lives_a_job_without_a_folder_may_run(
    report: Report, sweep: FakeSweep
) -> None:
    sweep.job("model=e1", status="running", started=False)
    sweep.job("model=e42", status="not started", started=False)
    with RunLock(sweep.folder):
        statuses, lines = report(sweep.folder)
    assert statuses == ["running", "not started"]
    assert f"{sweep.folder}: the sweep still runs (pid {os.getpid()})" in lines


@pytest.mark.parametrize("seen", ["not started", "running", "unfinished"])
def test_what_a_sweep_could_not_see_is_not_said_of_a_result(
    report: Report, sweep: FakeSweep, seen: str
) -> None:
    sweep.top["ended"] = "2026-11-20T16:26:18+00:00"
    sweep.job("model=e1", status=seen)
    statuses, lines = report(sweep.folder)
    assert statuses == ["ok"]
    assert not any("saw" in line for line in lines)


def test_a_lone_run_that_was_killed_says_how_to_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", "model=e1", no_result=True)
    assert main(["mode=report", f"report.dir={run}", f"report.out={tmp_path / 'out'}"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert any(line.endswith(f"; to resume it: elman train.resume={run}") for line in lines)
