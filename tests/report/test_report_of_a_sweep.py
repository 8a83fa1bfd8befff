"""A real sweep of three models ends with its report."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from elman.cli.main import main
from elman.report.comparison.terminal import print_training_sweep
from elman.sweeps.row import SweepRow

from .fake_sweep import FakeSweep


def test_a_sweep_ends_with_its_table_and_its_report(
    tmp_path: Path,
    text_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    models = ["e75h4n16", "mamba2", "fla-gdn"]
    status = main(
        [
            *("-m", f"model={','.join(models)}", "hydra/launcher=basic", "hydra.sweep.dir=sweep"),
            *("model.dim=128", "model.depth=1", "train.steps=4", "train.batch_size=2"),
            *("train.chunk_size=16", "kernels.backend=reference", f"data.path={text_file}"),
            *("data.val_sample=256", "data.val_window=16", "log.every=2", "log.tensorboard=false"),
        ]
    )
    output = capfd.readouterr().out.splitlines()
    folder = tmp_path / "sweep"
    assert status == 0
    assert f"report: {folder}/report.html (and report.csv, report.md, audit.json)" in output
    table = [line for line in output if "│" in line and "ok" in line]
    content = json.loads((folder / "sweep.json").read_text())
    assert (content["mode"], [job["model"] for job in content["jobs"]]) == ("train", models)
    lines = list(csv.DictReader((folder / "report.csv").open()))
    rows = [line for line in lines if line["kind"] == "model"]
    assert [row["model"] for row in rows] == models
    assert {row["set"] for row in rows} == {"1"}
    for row, job, printed in zip(rows, content["jobs"], table[-3:], strict=True):
        result = json.loads((folder / job["folder"] / "result.json").read_text())
        assert float(row["loss"]) == result["loss"]
        assert float(row["minutes"]) == pytest.approx(result["seconds"]["train"] / 60)
        assert f"{result['loss']:.4f} (last 4)" in printed
    page = (folder / "report.html").read_text()
    assert page.count("<polyline points=") >= 3 * 4
    # The same again, from the files alone.
    before = {name: (folder / name).read_text() for name in ("report.csv", "report.md")}
    assert main(["mode=report", "report.dir=sweep"]) == 0
    assert {name: (folder / name).read_text() for name in before} == before
    printed_again = [line for line in capfd.readouterr().out.splitlines() if "│" in line]
    assert printed_again == table[-3:]


def test_a_full_disk_at_the_end_of_a_sweep_costs_the_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    sweep.job("model=e1")

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    print_training_sweep([SweepRow(1, ["model=e1"], "ok")], [], sweep.folder)
    output = capfd.readouterr().out.splitlines()
    assert any("│ e1 " in line and line.rstrip().endswith("ok") for line in output)
    assert any(
        line.startswith("warning:") and "(No space left on device)" in line for line in output
    )
    assert not list(sweep.folder.glob("*report*"))


def test_a_sweep_without_files_has_its_statuses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    print_training_sweep([SweepRow(1, ["model=e1"], "crash")], [], tmp_path)
    output = capfd.readouterr().out
    assert [cell.strip() for cell in output.splitlines()[2].split("│")] == [
        "1",
        "model=e1",
        "crash",
    ]
    assert "warning: no report: " in output
