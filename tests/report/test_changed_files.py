"""A report finds what was changed in a run's files after the run wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elman.evaluation.result import RunResult
from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import make_report
from elman.report.comparison.runs import CHANGED_RESULT, DAMAGED, Run, read_run
from elman.training.recorder import write_result

from .fake_sweep import FakeSweep, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run folder whose result was written as training writes it."""
    return sealed(make_run(tmp_path / "run"))


def sealed(folder: Path) -> Path:
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").unlink()
    write_result(folder, RunResult.model_validate(result))
    return folder


def told(found: Run, name: str) -> list[str]:
    return [line for line in found.problems if line.startswith(f"{name}: changed")]


def flipped(content: bytes, at: int) -> bytes:
    digit = b"%d" % ((int(content[at : at + 1]) + 1) % 10)
    return content[:at] + digit + content[at + 1 :]


@pytest.mark.parametrize("name", ["result.json", "config.yaml", "metrics.jsonl"])
def test_a_flipped_digit_is_named_wherever_it_is(run: Path, name: str) -> None:
    assert read_run(run).problems == ()
    path = run / name
    content = path.read_bytes()
    digits = [at for at, sign in enumerate(content) if chr(sign).isdigit()]
    for at in digits[:: max(1, len(digits) // 40)]:
        path.write_bytes(flipped(content, at))
        found = read_run(run)
        assert found.problems, content[max(0, at - 30) : at + 10]
        assert not (found.counts and name == "result.json")
    path.write_bytes(content)
    assert read_run(run).problems == ()


def test_an_edited_file_is_one_line_and_its_run_enters_no_mean(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for seed, loss in ((1, 1.5), (2, 1.6)):
        result = {"loss": loss}
        sealed(sweep.job("model=e1", f"train.seed={seed}", result=result))
    path = sweep.folder / "02_e1" / "result.json"
    path.write_text(path.read_text().replace('"loss": 1.6', '"loss": 1.1'))
    report = make_report([sweep.folder])
    rows = {run.status: row for row in report.rows for run in row.runs}
    assert [run.seed for run in rows["ok"].counted] == [1]
    assert rows[DAMAGED] is rows["ok"]
    (line,) = (line for line in report.problems if "changed" in line)
    assert line.endswith(f"damaged after 40 steps: result.json: {CHANGED_RESULT}")
    assert "changed after the run wrote it" in page_text(report)


def test_an_edited_configuration_is_one_line(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    path = sweep.job("model=e1", "train.seed=1") / "config.yaml"
    path.write_text(path.read_text().replace("batch_size: 4", "batch_size: 8"))
    report = make_report([sweep.folder])
    (line,) = report.problems
    assert line.startswith("job 1 (01_e1, seed 1): config.yaml: changed after the run wrote it")


def test_a_run_that_goes_on_has_changed_nothing(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"kind": "step", "step": 41, "loss": 1.0}) + "\n")
    assert read_run(run).problems == ()


def test_a_part_of_a_line_may_be_cut_off_later(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    path = folder / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "st')
    sealed(folder)
    path.write_bytes(whole)
    assert read_run(folder).problems == ()


def test_a_run_of_an_earlier_version_has_no_digest_and_is_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    config = folder / "config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    assert lines[-1].startswith("# sha256 of the lines above: ")
    config.write_text("".join(lines[:-1]))
    found = read_run(folder)
    assert (found.counts, found.problems) == (True, ())


def test_a_file_without_its_digest_is_used_as_it_is(run: Path) -> None:
    path = run / "result.json"
    result = json.loads(path.read_text())
    del result["digests"]
    path.write_text(json.dumps(result | {"loss": 1.25}))
    found = read_run(run)
    assert found.result is not None
    assert (found.counts, found.result.loss, told(found, "result.json")) == (True, 1.25, [])
