"""What a report says to type next: the seeds that would decide, as a command that can be copied."""

from __future__ import annotations

import html
import shlex
from pathlib import Path

import pytest

from elman.cli.main import main
from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import make_report
from elman.report.comparison.write import markdown_text
from elman.runs.folder import RunLock

from .fake_sweep import FakeSweep

CLOSE, FAR, BEST = [1.53, 1.54, 1.48], [1.90, 1.93, 1.86], [1.50, 1.52, 1.47]


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return an empty sweep, in a folder whose name a shell would split."""
    return FakeSweep(tmp_path / "my sweeps" / "a_sweep")


def seeded(sweep: FakeSweep, losses: list[float], *overrides: str, first: int = 1) -> None:
    for seed, loss in enumerate(losses, first):
        sweep.job(*overrides, f"train.seed={seed}", result={"loss": loss})


def commands(sweep: FakeSweep) -> dict[str, list[list[str]]]:
    """Return what decides each row, as arguments after ``elman -m sweep.add=...``."""
    (group,) = make_report([sweep.folder]).wins.groups
    head = ["elman", "-m", f"sweep.add='{sweep.folder}'"]
    found = {one.row.label: list(map(shlex.split, one.to_decide)) for one in group.challengers}
    found["noise"] = list(map(shlex.split, group.to_measure))
    assert all(texts[:3] == head for each in found.values() for texts in each)
    return {label: [texts[3:] for texts in each] for label, each in found.items()}


def test_every_form_has_the_command_that_would_decide(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    for model, losses in (("e1", BEST), ("e42", CLOSE), ("e68", FAR)):
        seeded(sweep, losses, f"model={model}")
    assert commands(sweep) == {
        "e42": [["model=e42,e1", "train.seed=4,5"]],
        "e68": [],
        "noise": [],
    }
    report = make_report([sweep.folder])
    (line,) = report.wins.groups[0].challengers[0].to_decide
    assert f"to decide it: `{line}`" in markdown_text(report)
    assert f"to decide it: <code>{line}</code>" in html.unescape(page_text(report))
    assert main(["mode=report", f"report.dir='{sweep.folder}'"]) == 0
    assert f"to decide it: {line}" in capfd.readouterr().out.splitlines()


def test_other_values_of_the_sweep_are_left_out(sweep: FakeSweep) -> None:
    for lr, losses in (("1e-3", BEST), ("2e-3", CLOSE), ("5e-3", FAR)):
        seeded(sweep, losses, "model=e1", f"optim.lr={lr}")
    found = commands(sweep)
    assert found["e1 optim.lr=2e-3"] == [["optim.lr=2e-3,1e-3", "train.seed=4,5"]]


def test_rows_of_one_seed_get_two_more(sweep: FakeSweep) -> None:
    for model in ("e1", "e42", "e68"):
        seeded(sweep, [1.5], f"model={model}", first=42)
    assert commands(sweep)["noise"] == [["train.seed=43,44"]]


def test_seeds_that_one_row_has_come_first_and_failed_ones_are_left_out(sweep: FakeSweep) -> None:
    seeded(sweep, BEST, "model=e1")
    seeded(sweep, CLOSE[:2], "model=e42")
    sweep.failed("model=e42", "train.seed=3", status="nan", error="loss is nan")
    seeded(sweep, [1.51], "model=e1", first=4)
    assert commands(sweep)["e42"] == [["train.seed=4"]]


def test_many_seeds_are_a_range(sweep: FakeSweep) -> None:
    seeded(sweep, BEST, "model=e1")
    seeded(sweep, [1.56, 1.49, 1.49], "model=e42")
    ((text,),) = commands(sweep)["e42"]
    assert text.startswith("train.seed=range(4,")


def test_a_suite_names_its_models_and_a_sweep_that_runs_has_no_command(tmp_path: Path) -> None:
    runs = [["model=e1"], ["model=e42"], ["model=e68"]]
    sweep = FakeSweep(tmp_path / "sweep", benchmark="mine", suite={"title": "a", "runs": runs})
    for model, losses in (("e1", BEST), ("e42", CLOSE), ("e68", FAR)):
        seeded(sweep, losses, f"model={model}")

    def decides() -> tuple[str, ...]:
        (group,) = make_report([sweep.folder]).wins.groups
        return group.challengers[0].to_decide

    head = f"elman -m sweep.add={sweep.folder}"
    assert decides() == (f"{head} benchmark.only=e42,e1 train.seed=4,5",)
    # A suite whose runs have seeds of their own gets more of them for all its runs.
    sweep.top["suite"] = {"title": "a", "runs": [[*run, "train.seed=1"] for run in runs]}
    sweep.write()
    assert decides() == (f"{head} train.seed=4,5",)
    sweep.top["ended"] = None
    sweep.write()
    with RunLock(sweep.folder):
        assert decides() == ()


def test_rows_of_two_sweeps_have_a_command_each(tmp_path: Path) -> None:
    folders = []
    for name, model, losses in (("one", "e1", BEST), ("two", "e42", CLOSE)):
        sweep = FakeSweep(tmp_path / name)
        seeded(sweep, losses, f"model={model}")
        folders.append(sweep.folder)
    (group,) = make_report(folders).wins.groups
    assert group.challengers[0].to_decide == tuple(
        f"elman -m sweep.add={folder} train.seed=4,5" for folder in reversed(folders)
    )
