"""What a killed session recorded after its last checkpoint does not disturb the next one."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elman.report.metrics_file import read_metrics
from elman.training.recorder import mend_last_line

LOGGED = ("log.tensorboard=true", "train.save_every=2", "train.val_every=null")


@pytest.fixture
def killed(train):
    """Return a run as it was killed after step 6: its newest checkpoint is that of step 4."""
    run = train(*LOGGED)
    shutil.rmtree(run.folder / "checkpoints" / "step-0000006")
    (run.folder / "checkpoints" / "best").unlink()
    (run.folder / "result.json").unlink()
    return run


def shown(folder: Path, tag: str) -> list[int]:
    """Return the steps of a curve as TensorBoard shows it."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars(tag)]


@pytest.mark.parametrize("clock", ["goes on", "was set back"])
def test_the_curves_of_a_resumed_run_do_not_run_backwards(
    train, killed, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    assert shown(killed.folder, "step/loss") == [1, 2, 3, 4, 5, 6]
    if clock == "was set back":
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() - 86_400)
    resumed = train(*LOGGED, f"train.resume={killed.folder}")
    assert shown(resumed.folder, "step/loss") == [1, 2, 3, 4, 5, 6]
    assert shown(resumed.folder, "window/loss") == [2, 4, 6]
    again = train(*LOGGED, "train.steps=8", f"train.resume={killed.folder}")
    assert shown(again.folder, "step/loss") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_run_that_starts_again_shows_nothing_of_the_first_start(train, killed) -> None:
    shutil.rmtree(killed.folder / "checkpoints")
    resumed = train(*LOGGED, "train.steps=3", f"train.resume={killed.folder}")
    assert shown(resumed.folder, "step/loss") == [1, 2, 3]


@pytest.mark.parametrize(
    "part", ['{"kind": "step", "st', '{"kind": "window", "step": 6, "loss": 1e']
)
def test_a_line_that_was_cut_off_spoils_no_record_of_the_next_session(
    train, killed, part: str
) -> None:
    with (killed.folder / "metrics.jsonl").open("a") as stream:
        stream.write(part)
    resumed = train(*LOGGED, f"train.resume={killed.folder}")
    metrics = read_metrics(resumed.folder)
    assert metrics.problems == ()
    assert metrics.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert [record["step"] for record in resumed.records("session")] == [0, 4]


def test_only_a_part_of_a_record_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    record = json.dumps({"kind": "step", "step": 1})
    whole = f"{record}\n{record}\n"
    for before, after in (
        ("", ""),
        (whole, whole),
        (whole[:-1], whole),
        (whole[:-2], f"{record}\n"),
        ('{"ki', ""),
    ):
        path.write_text(before)
        mend_last_line(path)
        assert path.read_text() == after
    mend_last_line(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
