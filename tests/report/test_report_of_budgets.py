"""Reports of runs that were given equal bytes, or equal floating-point operations."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from elman.report.comparison.deciding import LOSS
from elman.report.comparison.page import page_text
from elman.report.comparison.progress import progress_of
from elman.report.comparison.report_data import make_report
from elman.report.comparison.sources import load_sources
from elman.report.comparison.write import csv_text, markdown_text
from elman.runs.folder import RunLock

from .fake_sweep import BATCH, CHUNK, FakeSweep

BYTES = BATCH * CHUNK


def with_budget(folder: Path, budget: str, each: tuple[float, float] = (3e6, 6e6)) -> FakeSweep:
    """Return a sweep of two models; the second takes more operations a byte, and fewer bytes."""
    sweep = FakeSweep(folder)
    for model, per_byte, steps in (("e1", each[0], 40), ("e42", each[1], 20)):
        result = {
            "steps": steps,
            "tokens": steps * BYTES,
            "flops": steps * BYTES * per_byte,
            "flops_per_byte": per_byte,
        }
        losses = [5.0 - 0.05 * n for n in range(steps)]
        sweep.job(f"model={model}", "train.steps=null", budget, losses=losses, result=result)
    return sweep


def test_the_loss_at_equal_operations_decides(tmp_path: Path) -> None:
    report = make_report([with_budget(tmp_path / "sweep", "train.flops=1.536e10").folder])
    (group,) = report.wins.groups
    assert group.axis == "FLOPs"
    line = group.challengers[0].line(LOSS, "FLOPs")
    assert (line.effort, line.earlier) == (pytest.approx(1.536e10), False)
    lines = [*csv.DictReader(io.StringIO(csv_text(report)))]
    assert {one["flops"] for one in lines if one["kind"] == "model"} == {"15360000000.0"}
    assert "FLOPs" in {one["at"] for one in lines if one["kind"] == "difference"}
    for text in (page_text(report), markdown_text(report)):
        assert "equal FLOPs: every run had 1.536e+10 FLOPs" in text
        assert "1.536e+10" in text


def test_other_budgets_name_no_operations(tmp_path: Path) -> None:
    report = make_report([with_budget(tmp_path / "sweep", "train.bytes=5120").folder])
    assert report.wins.groups[0].axis == "bytes"
    text = markdown_text(report)
    assert "equal bytes: every run had 5,120 bytes" in text
    assert "at equal FLOPs" not in text
    assert "| FLOPs |" not in text


def test_rows_of_different_budgets_are_not_compared(tmp_path: Path) -> None:
    sweep = with_budget(tmp_path / "sweep", "train.flops=1.536e10")
    sweep.job("model=e68", "train.steps=null", "train.bytes=5120")
    report = make_report([sweep.folder])
    assert "different duration: 1.536e+10 FLOPs in set 1; 5,120 bytes in set 2" in markdown_text(
        report
    )


@pytest.mark.parametrize(
    ("budget", "share"),
    [("train.bytes=10240", 0.25), ("train.flops=2.56e10", 0.3), ("train.minutes=4", 0.25)],
)
def test_the_page_of_a_running_sweep_knows_how_far_it_is(
    tmp_path: Path, budget: str, share: float
) -> None:
    sweep = FakeSweep(tmp_path / "sweep", ended=None)
    run = sweep.job(
        "model=e1", "train.steps=null", budget, status="running", losses=[2.0] * 20, no_result=True
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    lines[0]["flops_per_byte"] = 3e6
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with RunLock(sweep.folder), RunLock(run):
        (source,) = load_sources([sweep.folder])
    (job,) = progress_of(source).jobs
    assert job.share == pytest.approx(share)
    assert job.left == pytest.approx(60 * (1 - share) / share)
