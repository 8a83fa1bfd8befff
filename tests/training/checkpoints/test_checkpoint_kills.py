"""A kill, or a full disk, at every single file-system operation of saving checkpoints."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.training.checkpoints import store as checkpoints
from elman.training.checkpoints.store import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    find_checkpoint,
)

KEEP = 2
# Everything through which a save touches the disk, and who calls it under which name.
OPERATIONS = (
    (os, "mkdir"),
    (os, "open"),
    (os, "fsync"),
    (os, "rename"),
    (os, "replace"),
    (os, "symlink"),
    (os, "unlink"),
    (os, "rmdir"),
    (io, "open"),
    (checkpoints, "save_file"),
    (torch, "save"),
)
TAKES_ROOM = ("mkdir", "fsync", "symlink", "save_file", "save")
# The kinds of steps of a run: (step, val_bpb). Every one saves, some are the best so far.
History = tuple[tuple[int, float | None], ...]
HISTORY: History = ((1, 3.0), (2, None), (3, 2.0), (4, 2.5), (5, None), (5, 1.5), (6, None))


class Killed(BaseException):
    """Ends the saving where a SIGKILL would: no handler of errors catches it."""


class Disk:
    """Lets so many operations through; the next does not happen, and ``fails`` is called.

    Attributes:
        failed: The operation that failed first.
    """

    def __init__(self, allowed: int, fails: Callable[[], None], stays_full: bool = False) -> None:
        self._allowed, self._fails, self._stays_full = allowed, fails, stays_full
        self.failed: str | None = None

    def before(self, name: str) -> None:
        again = self._stays_full and self.failed is not None and name in TAKES_ROOM
        if self._allowed == 0 or again:
            self.failed = self.failed or name
            self._allowed = -1
            self._fails()
        self._allowed -= 1


@contextmanager
def operating(disk: Disk) -> Iterator[None]:
    """Count the operations of everything in this context on ``disk``."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in OPERATIONS:
            patch.setattr(module, name, _counted(name, getattr(module, name), disk))
        yield


def _counted(name: str, operation: Callable[..., Any], disk: Disk) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        disk.before(name)
        return operation(*args, **kwargs)

    return counted


def kill() -> None:
    raise Killed


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def new_store(folder: Path, said: list[str] | None = None) -> CheckpointStore:
    say = said.append if said is not None else pytest.fail
    return CheckpointStore(folder, KEEP, "mode: train\n", say)


def save(store: CheckpointStore, step: int, val_bpb: float | None = None) -> Path:
    weights = {"w": torch.full((64,), float(step))}
    return store.save(weights, {"step": step}, {"step": step, "val_bpb": val_bpb})


def assert_whole(checkpoint: Checkpoint) -> None:
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(64))})
    checkpoint.load_weights(model)
    assert torch.equal(model["w"], torch.full((64,), float(checkpoint.step)))
    assert checkpoint.load_state() == {"step": checkpoint.step}
    assert checkpoint.config_tree() == {"mode": "train"}


def assert_nothing_lost(folder: Path, before: History, now: History) -> None:
    """What has a checkpoint's name is whole; the newest and the best of before are there."""
    whole = {}
    for path in folder.glob("step-*"):
        whole[path.name] = find_checkpoint(path)
        assert_whole(whole[path.name])
    if before:
        assert find_checkpoint(folder).step in (before[-1][0], now[-1][0])
    assert kept_names(before) - {"best"} <= set(whole) or kept_names(now) - {"best"} <= set(whole)
    if best_of(before) is not None:
        assert find_checkpoint(folder / "best").step in (best_of(before), best_of(now))


def best_of(history: History) -> int | None:
    scored = {step: bpb for step, bpb in history if bpb is not None}
    return min(scored, key=lambda step: scored[step]) if scored else None


def kept_names(history: History) -> set[str]:
    """Return what a run with this history leaves: the newest, the best and the link to it."""
    steps = sorted({step for step, _ in history})[-KEEP:]
    best = best_of(history)
    kept = {f"step-{step:07d}" for step in (*steps, best) if step is not None}
    return kept if best is None else kept | {"best"}


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if ".unf" in path.name} | {
        path.name for path in folder.iterdir()
    }


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill of a process leaves does not depend on it, and it takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def with_history(tmp_path: Path) -> Callable[[History], Path]:
    """Return a function that makes the folder of checkpoints of a run with this history."""
    made = itertools.count()

    def make(history: History) -> Path:
        pattern, folder = tmp_path / "pattern", tmp_path / f"run-{next(made)}"
        if history and not pattern.exists():
            for step, val_bpb in history:
                save(new_store(pattern), step, val_bpb)
            assert names_in(pattern) == kept_names(history)
        if history:
            shutil.copytree(pattern, folder, symlinks=True)
        return folder

    return make


ENDS = pytest.mark.parametrize("ends", range(1, len(HISTORY) + 1))


@pytest.mark.required
@ENDS
def test_a_kill_at_any_operation_loses_nothing_and_leaves_nothing(
    with_history: Callable[[History], Path], ends: int
) -> None:
    before, now = HISTORY[: ends - 1], HISTORY[:ends]
    for allowed in itertools.count():
        folder = with_history(before)
        disk = Disk(allowed, kill)
        with suppress(Killed), operating(disk):
            save(new_store(folder), *now[-1])
        assert_nothing_lost(folder, before, now)
        # The run goes on from its newest checkpoint: it saves that step, and then another one.
        save(new_store(folder), *now[-1])
        assert names_in(folder) == kept_names(now)
        save(new_store(folder), now[-1][0] + 1)
        assert names_in(folder) == kept_names((*now, (now[-1][0] + 1, None)))
        if disk.failed is None:
            assert allowed > 8
            return


@ENDS
def test_a_kill_while_a_killed_save_is_cleared_up_changes_nothing(
    with_history: Callable[[History], Path], ends: int
) -> None:
    """Two kills in a row, the second at any operation of the save after the first."""
    before, now = HISTORY[: ends - 1], HISTORY[:ends]
    for first, second in itertools.product(range(6, 40, 5), range(1, 30, 4)):
        folder = with_history(before)
        for allowed in (first, second):
            with suppress(Killed), operating(Disk(allowed, kill)):
                save(new_store(folder), *now[-1])
            assert_nothing_lost(folder, before, now)
        save(new_store(folder), *now[-1])
        assert names_in(folder) == kept_names(now)


@pytest.mark.required
@pytest.mark.parametrize("stays_full", [False, True], ids=["one failure", "from there on"])
@ENDS
def test_a_disk_that_fails_at_any_operation_is_said_and_loses_nothing(
    with_history: Callable[[History], Path], ends: int, stays_full: bool
) -> None:
    before, now = HISTORY[: ends - 1], HISTORY[:ends]
    for allowed in itertools.count():
        folder = with_history(before)
        said: list[str] = []
        disk = Disk(allowed, full, stays_full)
        with operating(disk):
            try:
                save(new_store(folder, said), *now[-1])
            except CheckpointError as error:
                said.append(str(error))
        assert_nothing_lost(folder, before, now)
        assert all("No space left" in line and str(folder) in line for line in said), said
        if not said:  # it was possible all the same
            assert names_in(folder) == kept_names(now), disk.failed
        save(new_store(folder), *now[-1])
        assert names_in(folder) == kept_names(now)
        if disk.failed is None:
            assert said == []
            return
