"""``train.checkpoints=false``: a run that leaves its numbers and no weights."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.base.exit_status import ExitStatus
from elman.training.checkpoints.store import CheckpointStore
from elman.training.listeners.saving import Saver
from elman.training.moments import Moment
from tests.small_run import E1, TEXT, Elman, elman_said

Train = Callable[..., Any]
NOTHING = ("train.checkpoints=false", "log.tensorboard=false", "log.plot=false")


def test_a_run_without_checkpoints_leaves_its_numbers_alone(train: Train) -> None:
    usual = train("train.save_every=2", folder="usual")
    without = train("train.save_every=2", *NOTHING, folder="without")
    names = {path.name for path in without.folder.iterdir()}
    assert names == {"config.yaml", "metrics.jsonl", "result.json", ".lock"}
    assert without.status == ExitStatus.OK
    assert without.records("step") == usual.records("step")
    assert without.result["val_bpb"] == usual.result["val_bpb"]
    assert without.result["best_val_bpb"] == usual.result["best_val_bpb"]
    assert without.result["reload_difference_bpb"] is None
    assert without.result["seconds"]["checkpoint"] == 0.0


def test_a_run_without_checkpoints_needs_no_room_for_one(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointStore, "save", full)
    assert train(*NOTHING).status == ExitStatus.OK


@pytest.fixture
def elman(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Elman:
    """Return a function that runs the small run without checkpoints, in a folder of its own."""
    (tmp_path / "text.txt").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    return elman_said(capfd)


RUN = (*E1, *NOTHING, "data.path=text.txt", "train.steps=4", "hydra.run.dir=run")


def test_a_run_that_was_stopped_starts_again_from_its_first_step(
    elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(saver: Saver, moment: Moment) -> bool:
        if saver._state.step == 2:
            signal.raise_signal(signal.SIGTERM)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(Saver, "between_steps", stop)
        status, said = elman(*RUN)
    assert status == ExitStatus.INTERRUPTED
    assert "SIGTERM: stopped, and nothing saved (train.checkpoints=false), after step" in said
    status, said = elman("train.resume=run")
    assert status == ExitStatus.OK
    assert "no checkpoint was saved yet: starting from the first step" in said
    assert not Path("run/checkpoints").exists()


def test_a_run_that_has_ended_is_not_done_again(elman: Elman) -> None:
    assert elman(*RUN)[0] == ExitStatus.OK
    before = Path("run/result.json").read_text()
    status, said = elman("train.resume=run", "train.steps=8")
    assert status == ExitStatus.USER_ERROR
    assert "it has ended and saved no checkpoint (train.checkpoints=false)" in said
    assert Path("run/result.json").read_text() == before


def test_a_run_that_is_not_finite_says_that_no_weights_are_saved(
    elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, said = elman(*RUN, "optim=adamw", "optim.lr=1e6", "optim.warmup_steps=1")
    assert status == ExitStatus.NON_FINITE
    assert "no weights are saved (train.checkpoints=false); try a smaller optim.lr" in said
