"""The commands that a summary offers can be pasted, whatever the folder is called."""

from __future__ import annotations

import io
import shlex
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from elman.base.quoting import pasteable, unquoted
from elman.evaluation.result import RunResult
from elman.report.summary import print_summary


def test_a_run_without_a_checkpoint_offers_nothing_that_needs_one(train) -> None:
    run = train("train.steps=1")
    result = RunResult.model_validate(run.result)
    printed = [io.StringIO(), io.StringIO()]
    print_summary(Console(file=printed[0], width=200), run.folder, result)
    shutil.rmtree(run.folder / "checkpoints")
    print_summary(Console(file=printed[1], width=200), run.folder, result)
    assert ["elman mode=eval" in said.getvalue() for said in printed] == [True, False]


@pytest.mark.parametrize(
    ("status", "goes_on"), [("ok", False), ("crash", True), ("interrupted", True), ("oom", True)]
)
def test_what_did_not_end_well_says_how_it_goes_on(train, status: str, goes_on: bool) -> None:
    run, printed = train("train.steps=1"), io.StringIO()
    result = RunResult.model_validate({**run.result, "status": status})
    print_summary(Console(file=printed, width=200), run.folder, result)
    assert ("elman train.resume=" in printed.getvalue()) is goes_on


@pytest.mark.parametrize(
    "folder",
    [
        "outputs/2026-01-31/12-00_e88_tiny",
        "my runs/it's one",
        "a=b,c",
        "[x]{y}",
        "über/é",
        "q'$HOME",
    ],
)
def test_a_pasted_setting_means_the_folder(folder: str) -> None:
    (argument,) = shlex.split(pasteable("train.resume", folder))
    key, _, _ = argument.partition("=")
    assert key == "train.resume"
    assert unquoted(argument) == folder


def test_a_plain_folder_stays_plain() -> None:
    assert pasteable("train.resume", "outputs/a-b_1.2") == "train.resume=outputs/a-b_1.2"


def test_the_time_before_the_first_step_is_said_without_that_of_waiting(tmp_path: Path) -> None:
    spent = {"start": 1.0, "imports": 2.0, "wait": 500.0, "build": 3.0, "check": 4.0}
    told = {}
    for name, seconds in (("newer", {**spent, "first_step": 5.0}), ("older", {})):
        result = RunResult.model_validate(
            {"status": "ok", "params": 1, "steps": 1, "tokens": 1, "loss_steps": 1}
            | {"seconds": {"train": 60.0, "validation": 6.0, "checkpoint": 7.0, **seconds}}
        )
        printed = io.StringIO()
        print_summary(Console(file=printed, width=200), tmp_path, result)
        (told[name],) = [line for line in printed.getvalue().splitlines() if "validating" in line]
    assert "6s validating, 7s saving, 15s before the first step" in told["newer"]
    assert told["older"].rstrip(" │").endswith("7s saving")
