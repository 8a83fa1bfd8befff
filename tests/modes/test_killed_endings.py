"""A run that is killed between its last save and its end: a resume writes what is missing."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from elman.cli.main import main
from elman.modes import train as train_mode
from elman.report import plots
from elman.report.metrics_file import read_metrics
from elman.training.checkpoints import store as checkpoints
from elman.training.listeners.saving import Saver
from tests.small_run import E1, TEXT

SETTINGS = (*E1, "log.plot=true", "train.steps=2", "data.path=text.txt")
# Everything through which the end of a run changes the disk, and who calls it under which name.
OPERATIONS = (
    (os, "mkdir"),
    (os, "open"),
    (os, "rename"),
    (os, "replace"),
    (os, "symlink"),
    (os, "unlink"),
    (io, "open"),
    (checkpoints, "save_file"),
    (plots, "plot_losses"),
    (train_mode, "print_summary"),
)


class Killed(BaseException):
    """Ends the run where a SIGKILL would: no handler of errors catches it."""


class Disk:
    """Lets so many operations through after the last save has begun; the next never happens."""

    def __init__(self, allowed: int) -> None:
        self._left, self.ending, self.killed = allowed, False, False

    def before(self) -> None:
        if not self.ending:
            return
        self._left -= 1
        if self._left < 0:  # a dead process does nothing more
            self.killed = True
            raise Killed


@contextmanager
def killing(disk: Disk, after_save: bool) -> Iterator[None]:
    """Count the operations of the end of a run on ``disk``, from its last save on or after it."""
    save = Saver.save

    def saved(saver: Saver, final: bool = False) -> None:
        disk.ending = disk.ending or (final and not after_save)
        save(saver, final)
        disk.ending = disk.ending or final

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            disk.before()
            return operation(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saver, "save", saved)
        for module, name in OPERATIONS:
            patch.setattr(module, name, counted(getattr(module, name)))
        yield


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_bytes(TEXT)
    return tmp_path


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def assert_ends_ok(run: Path, whole: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """A resume gives the run everything that a run leaves; then there is nothing left to do."""
    assert main([f"train.resume={run}"]) == 0
    result = result_of(run)
    same = ("status", "steps", "tokens", "loss", "val_bpb", "val_step", "best_val_bpb")
    assert {key: result[key] for key in same} == {key: whole[key] for key in same}
    assert (run / "loss.png").stat().st_size > 0
    metrics = read_metrics(run)
    assert (metrics.steps.tolist(), metrics.problems) == ([1, 2], ())
    assert not list(run.rglob("*unfinished*"))
    capfd.readouterr()
    assert main([f"train.resume={run}"]) == 2
    assert "its budget is used up" in capfd.readouterr().err


def killed_after(run: str, allowed: int, *, after_save: bool, again: bool = False) -> Disk:
    """Run until the kill; ``again``: as a resumption that had two steps to do."""
    command = [*SETTINGS, f"hydra.run.dir={run}"]
    if again:
        assert main([*SETTINGS, "train.steps=1", f"hydra.run.dir={run}"]) == 0
        command = [f"train.resume={run}", "train.steps=2"]
    disk = Disk(allowed)
    with suppress(Killed), killing(disk, after_save):
        main(command)
    return disk


@pytest.mark.required
@pytest.mark.parametrize("again", [False, True], ids=["a new run", "a resumed one"])
def test_a_run_killed_right_after_its_last_save_can_be_finished(
    place: Path, capfd: pytest.CaptureFixture[str], again: bool
) -> None:
    assert main([*SETTINGS, "hydra.run.dir=whole"]) == 0
    assert killed_after("run", 0, after_save=True, again=again).killed
    assert_ends_ok(Path("run"), result_of(Path("whole")), capfd)


def test_a_run_without_its_picture_gets_it(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:

        def killed(folder: Path) -> None:
            raise Killed

        patch.setattr(plots, "plot_losses", killed)
        with suppress(Killed):
            main([*SETTINGS, "hydra.run.dir=run"])
    assert not Path("run/loss.png").exists()
    assert_ends_ok(Path("run"), result_of(Path("run")), capfd)


def has_everything(run: Path) -> bool:
    """Whether the run was killed after the last thing that it leaves."""
    names = ("result.json", "loss.png")
    return all((run / name).exists() for name in names) and result_of(run)["steps"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["a new run", "a resumed one"])
def test_a_run_killed_at_any_operation_of_its_end_can_be_finished(
    place: Path, capfd: pytest.CaptureFixture[str], again: bool
) -> None:
    assert main([*SETTINGS, "hydra.run.dir=whole"]) == 0
    for allowed in itertools.count(step=5 if again else 1):
        disk = killed_after(f"run-{allowed}", allowed, after_save=False, again=again)
        run = Path(f"run-{allowed}")
        if not disk.killed or has_everything(run):
            assert allowed > 20
            return
        assert_ends_ok(run, result_of(Path("whole")), capfd)
        shutil.rmtree(f"run-{allowed}")


def test_fewer_steps_than_were_taken_are_refused(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert killed_after("run", 0, after_save=True).killed
    assert main(["train.resume=run", "train.steps=1"]) == 2
    assert "its budget is used up (2 steps" in capfd.readouterr().err
