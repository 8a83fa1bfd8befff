"""The page of a sweep that runs: its jobs, the time left, what failed, and who rewrites it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from elman.config.compose import compose_config
from elman.launchers.job import SweepJob
from elman.report.comparison.page import page_text
from elman.report.comparison.progress import progress_of
from elman.report.comparison.report_data import make_report
from elman.report.comparison.sources import load_sources
from elman.runs.folder import RunLock
from elman.sweeps import live_report as writer
from elman.sweeps.live_report import live_report
from elman.sweeps.manifest import Record

from .fake_sweep import FakeSweep


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a sweep without an end: 2 ok, 1 failed, 1 half done, 2 waiting."""
    sweep = FakeSweep(tmp_path / "sweep", ended=None)
    for seed in (1, 2):
        sweep.job("model=e1", f"train.seed={seed}", result={"seconds": {"checkpoint": 0.3}})
    sweep.failed("model=e1", "train.seed=3", status="nan", error="loss is nan at step 7")
    running = {"losses": [2.0] * 20, "no_result": True}
    sweep.job("model=e1", "train.seed=4", status="running", **running)
    for seed in (5, 6):
        sweep.job("model=e1", f"train.seed={seed}", status="not started", started=False)
    return sweep


def test_the_page_of_a_sweep_that_runs(sweep: FakeSweep) -> None:
    with RunLock(sweep.folder), RunLock(sweep.folder / sweep.jobs[3]["folder"]):
        page = page_text(make_report([sweep.folder]))
        (source,) = load_sources([sweep.folder])
    progress = progress_of(source)
    # 20 of 40 steps in 60 s; a job takes 120 + 8.7 + 0.3 s; one job at a time.
    assert [job.left for job in progress.jobs] == [0, 0, 0, 60, 129, 129]
    assert progress.seconds == 60 + 2 * 129
    assert progress.spent == pytest.approx(3 * 129 + 60, abs=1)
    assert (
        "<b>2</b> ok, <b>1</b> failed, <b>1</b> running, <b>2</b> waiting of 6 jobs; "
        "about <b>5m18s</b> left; 0.12 hours of jobs so far, about 0.088 to come"
    ) in page
    assert '<noscript><meta http-equiv="refresh"' in page
    assert '<body class="living">' in page
    assert "nan after 40 steps: loss is nan at step 7" in page
    command = f"elman -m sweep.resume={sweep.folder}"
    assert f"Once the sweep has ended, to run them again: <code>{command}</code>" in page
    later = page_text(make_report([sweep.folder]))  # its launcher is gone
    assert 'http-equiv="refresh"' not in later
    assert f"To run them again: <code>{command}</code>" in later


def test_what_a_job_said_last_is_the_reason_of_a_failure_without_a_result(tmp_path: Path) -> None:
    jobs = [
        SweepJob(number, 2, (), (), compose_config(["train.steps=3"]), tmp_path / str(number))
        for number in (1, 2)
    ]
    record = Record(tmp_path, jobs, "result.json")
    record.begin()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "result.json").write_text('{"status": "nan", "error": "loss is nan"}')
    assert record.job_ended(1, -9, "elman: error: the disk is gone") == "killed (SIGKILL)"
    assert record.job_ended(2, 3, "elman: nan: loss is nan") == "nan"
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert [job["reason"] for job in content["jobs"]] == ["error: the disk is gone", None]


def test_the_report_is_rewritten_while_the_jobs_run_and_not_after(
    sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the second one waits for 20 times as long as the first took, and behind other tests.
    monkeypatch.setattr(writer, "_SHARE", 1.0)
    monkeypatch.setattr(writer.os, "setpriority", lambda *_: None)
    page = sweep.folder / "report.html"
    with RunLock(sweep.folder), live_report(sweep.folder, every=0.2, first=0.0):
        written = []
        deadline = time.monotonic() + 300
        while len(written) < 2 and time.monotonic() < deadline:
            if page.exists() and (came := page.stat().st_mtime_ns) not in written:
                written.append(came)
            time.sleep(0.05)
    assert len(written) == 2
    assert 'class="living"' in page.read_text()
    left = sorted(path.name for path in sweep.folder.glob("*report*"))
    assert left == ["report.csv", "report.html", "report.md"]
    assert not list(sweep.folder.glob(".*unfinished"))
