"""``mode=report`` of a sweep that ran a suite: what was published for it, wherever its file is."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.config.suites import parse_suite

from .fake_sweep import FakeSweep

Report = Callable[..., list[dict[str, str]]]
MINE: dict[str, Any] = {
    "title": "two of mine",
    "description": "The first has <more> parameters.",
    "source": "my notebook",
    "published": ["e75_100m"],
    "published_only": [
        {"of": "e75_100m", "row": "another one", "loss": 2.5, "why": "no such cell here"}
    ],
    "runs": [["model=e75h4n16"], ["model=e75h8n24"]],
}
FILE = f"# @package _global_\nbenchmark: {json.dumps(MINE)}\nhydra: {{mode: MULTIRUN}}\n"
# (kind, model, published) of the rows of a report of the first of its two runs.
SHOWN = [
    ("model", "e75h4n16", "1.7237 (e75_100m, 2026-01-19)"),
    ("run", "e75h4n16", ""),
    ("published", "e75h4n16", "1.7237 (e75_100m, 2026-01-19)"),
    ("published", "e75h8n24", "1.6655 (e75_100m, 2026-01-19)"),
    ("published", "another one", "2.5000 (e75_100m, 2026-01-19)"),
]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """Return ``report(folder, *arguments)``: the lines of report.csv that mode=report writes."""
    monkeypatch.chdir(tmp_path)

    def run(folder: Path, *arguments: str) -> list[dict[str, str]]:
        assert main([*arguments, "mode=report", f"report.dir={folder}"]) == ExitStatus.OK
        return list(csv.DictReader((folder / "report.csv").open()))

    return run


@pytest.fixture
def folder_of_mine(tmp_path: Path) -> Path:
    """Return a folder with the suite ``mine``."""
    folder = tmp_path / "my yaml"
    (folder / "benchmark").mkdir(parents=True)
    (folder / "benchmark" / "mine.yaml").write_text(FILE)
    return folder


def shown(lines: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    return [(line["kind"], line["model"], line["published"]) for line in lines]


def sweep_of(folder: Path, **top: Any) -> Path:
    """Write a sweep of the first run of a suite."""
    sweep = FakeSweep(folder, **top)
    sweep.job("model=e75h4n16")
    return sweep.folder


def test_a_suite_of_the_users_own_is_shown_when_its_folder_is_gone(
    report: Report, folder_of_mine: Path, tmp_path: Path, text_file: Path
) -> None:
    status = main(
        [
            *("--config-dir", str(folder_of_mine), "benchmark=mine", "benchmark.only=e75h4n16"),
            *("hydra/launcher=basic", "hydra.sweep.dir=sweep", f"data.path={text_file}"),
            *("model.dim=128", "model.depth=1", "train.steps=2", "train.batch_size=2"),
            *("train.chunk_size=16", "data.val_sample=32", "data.val_window=16"),
            *("kernels.backend=reference", "log.tensorboard=false"),
        ]
    )
    assert status == ExitStatus.OK
    folder = tmp_path / "sweep"
    at_its_end = list(csv.DictReader((folder / "report.csv").open()))
    assert shown(at_its_end) == SHOWN
    shutil.rmtree(folder_of_mine)
    assert report(folder) == at_its_end


def test_the_record_counts_and_not_a_shipped_suite_of_the_same_name(
    report: Report, tmp_path: Path
) -> None:
    assert shown(report(sweep_of(tmp_path / "a", benchmark="quick_test", suite=MINE))) == SHOWN


def test_two_sweeps_of_one_suite_show_it_once(report: Report, tmp_path: Path) -> None:
    for name in ("a", "b"):
        sweep_of(tmp_path / "day" / name, benchmark="mine", suite=MINE)
    assert main(["mode=report", f"report.dir={tmp_path / 'day'}", "report.out=out"]) == 0
    lines = list(csv.DictReader((tmp_path / "out" / "report.csv").open()))
    assert [line for line in shown(lines) if line[0] == "published"] == SHOWN[2:]


def test_of_a_sweep_without_a_record_the_file_is_found(
    report: Report, folder_of_mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sweep_of(tmp_path / "a", benchmark="mine")
    assert shown(report(folder, "--config-dir", str(folder_of_mine))) == SHOWN
    capsys.readouterr()
    kinds = [line["kind"] for line in report(folder)]
    assert kinds == ["model", "run", *["published"] * (len(kinds) - 2)]
    assert (
        "the published figures of its suite are left out: benchmark=mine: no such suite; `elman "
        "mode=suites` lists all; if it is your own, add --config-dir DIR"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"title": "mine"}, "benchmark.source (in benchmark=mine): missing"),
        (MINE | {"published": ["e75_1m"]}, "e75_1m is not a file of elman.published"),
        ("text", "benchmark (in benchmark=mine): "),
    ],
    ids=["lacks a part", "of another version", "no section"],
)
def test_a_record_that_cannot_be_read_costs_the_published_figures_alone(
    record: Any,
    problem: str,
    report: Report,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = report(sweep_of(tmp_path / "a", benchmark="mine", suite=record))
    assert [line["model"] for line in lines if line["kind"] == "model"] == ["e75h4n16"]
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "are left out" in line]
    assert problem in said


def test_the_page_says_what_a_reader_must_know_of_the_suite(
    report: Report, tmp_path: Path, folder_of_mine: Path
) -> None:
    sweep = FakeSweep(tmp_path / "sweep", benchmark="mine")
    sweep.job("model=e75h4n16", result={"loss": 1.5})
    report(sweep.folder, "--config-dir", str(folder_of_mine))
    page = (sweep.folder / "report.html").read_text()
    assert "<strong>mine: two of mine.</strong> The first has &lt;more&gt; parameters." in page
    assert "**mine: two of mine.**" in (sweep.folder / "report.md").read_text()


def test_page_and_markdown_say_that_no_rate_of_a_suite_was_tuned(
    report: Report, tmp_path: Path
) -> None:
    sweep = FakeSweep(tmp_path / "sweep", benchmark="quick_test")
    sweep.job("model=mamba2_896x20_legacy")
    sweep.job("model=e75h8n24")
    report(sweep.folder)
    for name in ("report.html", "report.md"):
        line = "every model at the published rate 3e-4, tuned for none: see tune=rates"
        assert line in (sweep.folder / name).read_text()


def test_a_rate_that_was_typed_is_not_called_published(report: Report, tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep", benchmark="quick_test")
    sweep.job("model=mamba2_896x20_legacy", "optim.lr=0.001")
    report(sweep.folder)
    text = (sweep.folder / "report.md").read_text()
    assert "every model at the rate 1e-3, tuned for none: see tune=rates" in text


@pytest.mark.parametrize("suite", ["e23_50m", "batch_scaling"])
def test_the_time_of_a_step_stands_beside_the_published_one(
    report: Report, tmp_path: Path, suite: str
) -> None:
    sweep = FakeSweep(tmp_path / "a", benchmark=suite)
    sweep.job("model=e23_512x17_e1.5_legacy", result={"tok_s": 4_000.0})
    sweep.job("model=e1_512x21_e1.5_legacy")
    lines = report(sweep.folder)
    run = next(line for line in lines if line["kind"] == "run")
    # 4 rows, 17 layers: 4 / (4,000 * 17) s
    assert float(run["step_us"]) == pytest.approx(58.82, abs=0.01)
    published = {line["model"]: line["step_us"] for line in lines if line["step_us"]}
    assert published["e23_512x17_e1.5_legacy"] == "24.3"
    assert "9.1" in published.values()
    table = (sweep.folder / "report.md").read_text()
    assert "58.8 (published 24.3)" in table
    assert "| us a step |" in table


def test_no_time_of_a_step_where_none_was_published(report: Report, tmp_path: Path) -> None:
    folder = sweep_of(tmp_path / "a", benchmark="mine", suite=MINE)
    report(folder)
    assert "us a step" not in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("typed", "against"),
    [((), "e75h8n24"), (("report.against=e75h4n16",), "e75h4n16")],
    ids=["the suite's", "typed"],
)
def test_the_rows_are_compared_with_the_one_that_the_suite_names(
    report: Report, tmp_path: Path, typed: tuple[str, ...], against: str
) -> None:
    """Without it the lowest loss, that of e75h4n16, would be the one."""
    sweep = FakeSweep(tmp_path / "a", benchmark="mine", suite=MINE | {"against": "e75h8n24"})
    for model, loss in (("e75h4n16", 1.2), ("e75h8n24", 1.4)):
        sweep.job(f"model={model}", result={"loss": loss})
    lines = report(sweep.folder, *typed)
    assert {line["against"] for line in lines if line["kind"] == "difference"} == {against}


def test_a_suite_compares_with_its_best_row_if_the_one_it_names_did_not_run(
    report: Report, tmp_path: Path
) -> None:
    sweep = FakeSweep(tmp_path / "a", benchmark="mine", suite=MINE | {"against": "e75h8n24"})
    for seed, loss in ((1, 1.2), (2, 1.4)):
        sweep.job("model=e75h4n16", f"train.seed={seed}", result={"loss": loss})
    assert {line["model"] for line in report(sweep.folder)} >= {"e75h4n16"}


def test_a_suite_may_compare_only_with_a_model_of_its_runs() -> None:
    with pytest.raises(UserError) as caught:
        parse_suite("mine", MINE | {"against": "e75h8n25"})
    assert str(caught.value) == (
        "benchmark.against (in benchmark=mine): no run of it trains e75h8n25 "
        "(did you mean e75h8n24?); fix or drop it"
    )
