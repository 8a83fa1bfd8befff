"""A run that validates on files of their own: its result, its resume, and its evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.modes import eval as eval_mode
from elman.report.comparison.conditions import conditions, experiment
from elman.report.comparison.runs import read_run
from elman.runs.prepared import PreparedRun


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """A folder with three splits and a card."""
    folder = tmp_path / "set[1]"
    folder.mkdir()
    (folder / "train.txt").write_bytes(b"a text to train on, " * 200)
    (folder / "validation.txt").write_bytes(b"another one to validate on, " * 20)
    (folder / "test.txt").write_bytes(b"and one that nobody trains on, " * 20)
    (folder / "README.md").write_bytes(b"# A card")
    return folder


def test_a_run_says_what_it_took_and_its_validation_is_found_again(
    train: Any, data_set: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(f"data.path='{data_set}'")
    captured = capsys.readouterr()
    assert captured.out.count("files: ") + captured.err.count("files: ") == 1
    assert (
        "files: training on train.txt; validating on validation.txt; "
        "left: README.md (beside the data), test.txt (a test split)"
    ) in captured.out + captured.err
    data = run.result["data"]
    assert data["paths"] == [str(data_set / "train.txt")]
    assert (data["train_bytes"], data["val_bytes"], data["bytes"]) == (4000, 560, 4560)
    assert [Path(one["path"]).name for one in data["left"]] == ["README.md", "test.txt"]
    config = compose_config(["mode=eval", f"eval.checkpoint={run.folder}"])
    assert eval_mode.run(PreparedRun(config)) == ExitStatus.OK
    assert f"{run.result['val_bpb']:.6f}" in capsys.readouterr().out


def test_a_resumed_run_must_find_the_held_out_files_as_they_were(
    train: Any, data_set: Path
) -> None:
    overrides = (f"data.path='{data_set}/train.txt'", f"data.val_path='{data_set}/validation.txt'")
    run = train(*overrides)
    resume = ("train.steps=8", f"train.resume={run.folder}")
    with pytest.raises(UserError, match="differs from the data that the run was trained on"):
        train(*resume, overrides[0], f"data.val_path='{data_set}/test.txt'")
    assert train(*resume, *overrides).result["steps"] == 8


def test_runs_with_other_held_out_text_are_not_compared(train: Any, data_set: Path) -> None:
    path = f"data.path='{data_set}/train.txt'"
    held_out = ("validation.txt", "test.txt", "validation.txt")
    runs = [
        read_run(train(path, f"data.val_path='{data_set / name}'", folder=f"run{number}").folder)
        for number, name in enumerate(held_out)
    ]
    assert len({experiment(run) for run in runs}) == 1
    assert conditions(runs[0]) == conditions(runs[2])
    assert conditions(runs[0])["data"] != conditions(runs[1])["data"]
