"""What a mode declares and a sweep honors: its result file, its table, jobs in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from elman.base.exit_status import ExitStatus
from elman.config.run_config import MODES, Mode
from elman.runs.prepared import PreparedRun
from elman.sweeps.row import SweepRow

Elman = Callable[..., Any]  # the fixture of tests/stubs/command_line.py
Declare = Callable[..., list[Any]]


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Return ``declare(run, **of_mode)``: mode=train runs ``run`` and is declared so."""

    def as_train(run: Callable[..., ExitStatus], **of_mode: Any) -> list[Any]:
        printed: list[Any] = []
        module, table = ModuleType("elman.modes.train"), ModuleType("a_table")
        module.run = run  # type: ignore[attr-defined]
        module.prepare_ahead = lambda config: None  # type: ignore[attr-defined]
        table.show = lambda *arguments: printed.append(arguments)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "elman.modes.train", module)
        monkeypatch.setitem(sys.modules, "a_table", table)
        declared = Mode(MODES["train"].reads, table="a_table:show", **of_mode)
        monkeypatch.setitem(MODES, "train", declared)
        return printed

    return as_train


def in_process(job: PreparedRun) -> ExitStatus:
    """Leave a result, except in the jobs whose number of steps says otherwise."""
    steps = job.config.train.steps
    assert job.folder is None
    assert job.in_sweep
    print(f"ran {steps} {job.overrides}")
    if steps == 130:
        raise KeyboardInterrupt
    if steps == 1:
        raise RuntimeError("broken")
    job.result = {"steps": steps, "status": "odd" if steps == 7 else "ok"}
    return ExitStatus.FAILED if steps == 7 else ExitStatus.OK


def test_jobs_in_this_process_leave_their_results_for_the_table(
    elman: Elman, declare: Declare, tmp_path: Path
) -> None:
    printed = declare(in_process, in_process=True)
    ended = elman("-m", "train.steps=3,1,7,4", "train.seed=5")
    assert ended.status == 1
    assert "elman: crash: RuntimeError: broken" in ended.errors
    assert "[2/4] train.steps=1 train.seed=5" in ended.output.splitlines()
    assert "ran 7 ('train.steps=7', 'train.seed=5')" in ended.output
    ((rows, configs, folder),) = printed
    assert rows == [
        SweepRow(1, ("train.steps=3",), "ok", {"steps": 3, "status": "ok"}),
        SweepRow(2, ("train.steps=1",), "crash", None),
        SweepRow(3, ("train.steps=7",), "odd", {"steps": 7, "status": "odd"}),
        SweepRow(4, ("train.steps=4",), "ok", {"steps": 4, "status": "ok"}),
    ]
    assert [config.train.steps for config in configs] == [3, 1, 7, 4]
    assert folder is None
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_in_this_process_that_ends_well_exits_with_0(
    elman: Elman, declare: Declare
) -> None:
    declare(in_process, in_process=True)
    assert elman("-m", "train.steps=3,4").status == 0


def test_ctrl_c_in_this_process_starts_no_other_job(elman: Elman, declare: Declare) -> None:
    printed = declare(in_process, in_process=True)
    ended = elman("-m", "train.steps=3,130,4")
    assert ended.status == 130
    ((rows, _, _),) = printed
    assert [row.status for row in rows] == ["ok", "interrupted", "not started"]
    assert "ran 4" not in ended.output


def test_a_wrong_job_stops_a_sweep_in_this_process_before_the_first(
    elman: Elman, declare: Declare
) -> None:
    printed = declare(in_process, in_process=True)
    ended = elman("-m", "train.steps=3,0")
    assert (ended.status, ended.output, printed) == (2, "", [])


def test_the_result_file_is_the_one_that_the_mode_declares(
    elman: Elman, declare: Declare, tmp_path: Path
) -> None:
    def run(job: PreparedRun) -> ExitStatus:
        assert job.folder is not None
        (job.folder / "other.json").write_text(json.dumps({"cases": job.config.train.steps}))
        (job.folder / "result.json").write_text("{}")
        return ExitStatus.OK

    printed = declare(run, makes_folder=True, result_file="other.json")
    ended = elman("-m", "hydra/launcher=basic", "train.steps=3,4")
    assert (ended.status, ended.errors) == (0, "")
    ((rows, _, folder),) = printed
    assert [(row.status, row.result) for row in rows] == [
        ("ok", {"cases": 3}),
        ("ok", {"cases": 4}),
    ]
    assert folder.is_relative_to(tmp_path / "outputs")


def lines(arguments: Sequence[str], elman: Elman) -> list[str]:
    """Return what a command says, which must be wrong and leave nothing."""
    ended = elman(*arguments)
    assert (ended.status, ended.output) == (2, "")
    return ended.errors.splitlines()


def test_a_sweep_has_one_mode(elman: Elman) -> None:
    said = lines(["-m", "mode=train,models"], elman)
    assert said == [
        "elman: error: mode=train,models: a sweep has one mode; type a command for each"
    ]


def test_a_folder_that_the_mode_would_not_make_is_refused(elman: Elman, tmp_path: Path) -> None:
    said = lines(["-m", "mode=models", "model=e1,e42", "hydra.sweep.dir=x"], elman)
    assert said == ["elman: error: hydra.sweep.dir: mode=models makes no sweep folder; drop it"]
    assert list(tmp_path.iterdir()) == []
