"""Folders that an earlier version made: they resume, are scored, sampled and reported as ever."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from elman.config.validate import validate
from elman.report.comparison.runs import read_run
from elman.runs.folder import config_hash, read_config
from tests.small_run import elman_said

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="the data's path")
Elman = Callable[..., str]


def unpacked(archive: str, place: Path) -> Path:
    """Unpack the folders of an earlier version; return the folder in which it ran."""
    with tarfile.open(HERE / archive) as content:
        # Python 3.11.3 and earlier have no filters; the archive is our own.
        filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        content.extractall(place, **filters)  # type: ignore[arg-type]
    return place


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the folder of the oldest runs: from before today's rooms."""
    return unpacked("old_folders.tar.xz", tmp_path)


@pytest.fixture
def november(tmp_path: Path) -> Path:
    """Return the folder of the runs of 2026-11-27."""
    return unpacked("old_folders_2026_11_27.tar.xz", tmp_path)


@pytest.fixture
def elman(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Elman:
    """Return ``elman(*arguments)``: a command that ends well, and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "160")
    command = elman_said(capfd)

    def run(*arguments: str) -> str:
        status, said = command(*arguments)
        assert status == 0, said
        return said

    return run


def sessions(folder: Path) -> list[int]:
    """Return the steps at which a run's sessions began."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record["step"] for record in map(json.loads, lines) if record["kind"] == "session"]


def test_an_old_run_goes_on_where_it_stopped(old: Path, elman: Elman) -> None:
    before = json.loads((old / "stopped" / "result.json").read_text())
    assert (before["status"], before["steps"]) == ("interrupted", 22)
    elman("train.resume=stopped", "train.steps=30")
    after = json.loads((old / "stopped" / "result.json").read_text())
    assert (after["status"], after["steps"]) == ("ok", 30)
    assert sessions(old / "stopped") == [0, 22]


def test_an_old_run_is_scored_and_sampled(old: Path, elman: Elman) -> None:
    recorded = json.loads((old / "sweep" / JOB_1 / "result.json").read_text())["val_bpb"]
    assert recorded is not None
    scored = elman("mode=eval", f"eval.checkpoint=sweep/{JOB_1}")
    assert "bits per byte" in scored
    assert elman("mode=generate", f"generate.checkpoint=sweep/{JOB_1}", "generate.max_bytes=8")


# Its second job has two thousand steps; the sweep of November below has sixty.
@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("folder", "status", "steps"),
    [
        ("text", "ok", 6),
        ("task", "ok", 6),
        ("resumed", "ok", 8),
        ("nan", "nan", 1),
        ("oom", "oom", None),
        ("sweep/01_e1_b3a43ef8", "ok", 60),
        ("sweep/02_e1_f5a9f9b5", "interrupted", 4),
    ],
)
def test_every_result_of_november_is_read_whole(
    november: Path, folder: str, status: str, steps: int | None
) -> None:
    run = read_run(november / folder)
    never_began = ("no metrics.jsonl: no curve",)
    assert (run.status, run.problems) == (status, () if steps else never_began)
    assert run.result is not None
    assert run.result.steps == steps
    written = json.loads((november / folder / "result.json").read_text())
    assert run.result.tree() == written
    assert run.result.model_extra == {}


def test_a_run_has_the_name_that_an_earlier_version_gave_it(old: Path, november: Path) -> None:
    """A setting that came later and has no line in NEWER would change it."""
    files = sorted(old.glob("**/result.json"))
    assert len(files) == 10
    for path in files:
        config = validate(read_config(path.parent, "train.resume"))
        assert config_hash(config) == json.loads(path.read_text())["config_hash"], path


def test_runs_of_november_are_reported(november: Path, elman: Elman) -> None:
    folders = "[text,task,resumed,./nan,oom]"
    page = elman("mode=report", f"report.dir={folders}", "report.out=out")
    assert "nan after 1 steps" in page
    assert "oom: a step of 4096 rows of 16 bytes needs" in page
    assert (november / "out" / "report.html").exists()


def test_runs_of_november_go_on(november: Path, elman: Elman) -> None:
    elman("train.resume=resumed", "train.steps=10")
    assert sessions(november / "resumed") == [0, 4, 8]
    elman("train.resume=task", "train.steps=8")
    result = read_run(november / "task").result
    assert result is not None
    assert (result.steps, sorted(result.accuracy_by_length)) == (8, ["32", "8"])


def test_a_sweep_of_november_runs_only_what_is_not_ok(november: Path, elman: Elman) -> None:
    output = elman("-m", "sweep.resume=sweep")
    assert "1 of 2 jobs are ok already" in output
    assert sessions(november / "sweep" / "02_e1_f5a9f9b5") == [0, 4]
    record = json.loads((november / "sweep" / "sweep.json").read_text())
    assert [job["status"] for job in record["jobs"]] == ["ok", "ok"]
