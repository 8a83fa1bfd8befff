"""Folders that an earlier version made: they resume, are scored, sampled and reported as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).with_name("old_folders.tar.xz")
pytestmark = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="the data's path")
Elman = Callable[..., str]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the folder in which the earlier version ran."""
    with tarfile.open(ARCHIVE) as archive:
        # Python 3.11.3 and earlier have no filters; the archive is our own.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **filters)  # type: ignore[arg-type]
    return tmp_path


@pytest.fixture
def elman(old: Path) -> Elman:
    """Return ``elman(*arguments)``: a command that ends well, and what it prints."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "elman", *arguments],
            cwd=old,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_an_old_run_goes_on_where_it_stopped(old: Path, elman: Elman) -> None:
    before = json.loads((old / "stopped" / "result.json").read_text())
    assert (before["status"], before["steps"]) == ("interrupted", 22)
    elman("train.resume=stopped", "train.steps=30")
    after = json.loads((old / "stopped" / "result.json").read_text())
    assert (after["status"], after["steps"]) == ("ok", 30)
    lines = (old / "stopped" / "metrics.jsonl").read_text().splitlines()
    sessions = [record["step"] for record in map(json.loads, lines) if record["kind"] == "session"]
    assert sessions == [0, 22]


def test_an_old_run_is_scored_and_sampled(old: Path, elman: Elman) -> None:
    recorded = json.loads((old / "sweep" / JOB_1 / "result.json").read_text())["val_bpb"]
    assert recorded is not None
    scored = elman("mode=eval", f"eval.checkpoint=sweep/{JOB_1}")
    assert "bits per byte" in scored
    assert elman("mode=generate", f"generate.checkpoint=sweep/{JOB_1}", "generate.max_bytes=8")


def test_an_old_sweep_runs_only_what_is_not_ok_and_is_reported(old: Path, elman: Elman) -> None:
    output = elman("-m", "sweep.resume=sweep")
    assert "1 of 2 jobs are ok already" in output
    record = json.loads((old / "sweep" / "sweep.json").read_text())
    assert [job["status"] for job in record["jobs"]] == ["ok", "ok"]
    assert [job["folder"] for job in record["jobs"]] == [JOB_1, JOB_2]
    assert (old / "sweep" / "report.html").exists()
    page = elman("mode=report", "report.dir=sweep", "report.out=again")
    assert "e88_tiny" in page


JOB_1, JOB_2 = "01_e88_tiny_7ff99296", "02_e88_tiny_53bc8a73"
