"""Runs that report to Trackio: names of their own, and no failure there that costs a run.

A stand-in has the public functions of the package; with the package installed one more test runs.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from elman.training import trackio_writer, writer
from tests.small_run import E1, TEXT, Elman, elman_said
from tests.training.dashboards import failing, result_of, stand_in

SETTINGS = (*E1, "train.steps=2", "data.path=text.txt", "log.trackio=true", "hydra.run.dir=run")


@pytest.fixture
def trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Put the stand-in into the place of trackio; yield it."""
    with stand_in("trackio", tmp_path, monkeypatch) as module:
        module.runs.clear()
        yield module


@pytest.fixture
def elman(trackio: ModuleType, capfd: pytest.CaptureFixture[str]) -> Elman:
    """Return ``elman(*arguments)``: exit status and what it said."""
    return elman_said(capfd)


fail = failing(RuntimeError("the service is gone\nand more"))


def recorded(run: str) -> set[tuple[int, str, float]]:
    """Return every number of a run's metrics.jsonl, called as dashboards call it."""
    records = map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines())
    return {
        (record["step"], f"{record['kind']}/{name}", value)
        for record in records
        for name, value in record.items()
        if name not in ("kind", "step") and value is not None
    }


def test_it_shows_every_number_of_the_records_under_their_names(
    elman: Elman, trackio: ModuleType
) -> None:
    status, said = elman(*SETTINGS, "log.trackio_project=mine")
    assert status == 0
    assert "Trackio project initialized" not in said
    (run,) = trackio.runs
    shown = {(step, name, value) for step, values in run.logged for name, value in values.items()}
    assert shown == recorded("run")
    assert {"step/loss", "window/tok_s", "validation/val_bpb"} <= {name for _, name, _ in shown}
    assert run.given["project"] == "mine"
    assert run.given["config"]["model"]["name"] == "e1"
    assert run.finished == [True]  # its result is written by then
    told = result_of("run")["trackio"]
    assert told == {"project": "mine", "name": run.given["name"], "problem": None}
    assert run.given["name"].startswith("run_")
    assert f"Trackio: run {run.given['name']} of project mine" in said


def test_tensorboard_shows_the_same_names(elman: Elman) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert elman(*SETTINGS)[0] == 0
    events = EventAccumulator("run/tensorboard")
    events.Reload()
    assert set(events.Tags()["scalars"]) == {name for _, name, _ in recorded("run")}


def test_a_resume_goes_on_in_the_same_run(elman: Elman, trackio: ModuleType) -> None:
    assert elman(*SETTINGS)[0] == 0
    assert elman("train.resume=run", "train.steps=3")[0] == 0
    first, second = trackio.runs
    assert first.given["name"] == second.given["name"]
    assert second.given["resume"] == "allow"
    assert [step for step, values in second.logged if "step/loss" in values] == [3]


def test_without_the_package_it_is_refused_before_the_start(
    elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackio_writer, "find_spec", lambda name: None)
    status, said = elman(*SETTINGS)
    assert (status, said.count("\n")) == (2, 1)
    assert "log.trackio=true: trackio is not installed; type pip install 'elman[trackio]'" in said
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("what", "warning"),
    [
        ("init", "Trackio cannot be used (the service is gone); the run goes on without it"),
        ("log", "Trackio gets no more numbers (the service is gone)"),
    ],
)
def test_a_failure_costs_no_run(elman: Elman, trackio: ModuleType, what: str, warning: str) -> None:
    trackio.failing[what] = fail
    status, said = elman(*SETTINGS)
    assert status == 0
    assert said.count(warning) == 1
    result = result_of("run")
    assert (result["status"], result["trackio"]["problem"]) == ("ok", "the service is gone")


def test_what_it_warns_of_is_one_line_and_stands_in_the_result(
    elman: Elman, trackio: ModuleType
) -> None:
    trackio.failing["log"] = trackio.complain
    status, said = elman(*SETTINGS)
    assert status == 0
    lines = [line for line in said.splitlines() if "could not write" in line]
    assert lines == ["warning: Trackio: could not write"]
    assert result_of("run")["trackio"]["problem"] == "could not write"


def test_a_project_without_a_name_is_refused_before_the_start(elman: Elman) -> None:
    status, said = elman(*SETTINGS, "log.trackio_project=' '")
    assert (status, said.count("\n")) == (2, 1)
    assert "log.trackio_project: names nothing" in said
    assert not Path("run").exists()


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_failure_at_the_end_costs_nothing(
    elman: Elman, trackio: ModuleType, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(writer, "FINISH_SECONDS", 0.2)
    trackio.failing["finish"] = fail if how == "fails" else lambda: time.sleep(60)
    status, said = elman(*SETTINGS)
    assert status == 0
    why = "the service is gone" if how == "fails" else "not everything was sent within 0 s"
    assert f"warning: Trackio: {why}" in said
    assert result_of("run")["status"] == "ok"


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_the_package_keeps_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    Path("text.txt").write_bytes(TEXT)
    status, said = elman_said(capfd)(*SETTINGS)
    assert status == 0, said
    (place,) = (tmp_path / "trackio").glob("elman*.db")
    with sqlite3.connect(place) as base:
        kept = {
            (step, json.loads(text).get("step/loss"))
            for step, text in base.execute("SELECT step, metrics FROM metrics")
        }
    losses = {(step, value) for step, name, value in recorded("run") if name == "step/loss"}
    assert losses <= kept


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_the_package_adds_no_lines_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(TEXT)
    (tmp_path / "file").touch()
    for place, expected in (("there", 0), ("file/no-folder", 1)):
        settings = [*SETTINGS[:-1], f"hydra.run.dir=run-{expected}"]
        done = subprocess.run(
            [sys.executable, "-m", "elman", *settings],
            env=os.environ | {"TRACKIO_DIR": str(tmp_path / place)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said = done.stdout + done.stderr
        assert "Run finished" not in said
        assert "UserWarning" not in said
        assert said.count("warning: Trackio: ") == expected
