"""Checkpoints under a kill, a full disk, damage and malice."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from elman.base.errors import UserError
from elman.base.run_files import METRICS, RESULT
from elman.training.checkpoints import store as checkpoints
from elman.training.checkpoints.store import (
    CheckpointError,
    CheckpointStore,
    find_checkpoint,
)


def save(store: CheckpointStore, step: int, val_bpb: float | None = None) -> Path:
    weights = {"w": torch.full((64,), float(step))}
    return store.save(weights, {"step": step}, {"step": step, "val_bpb": val_bpb})


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", 2, "mode: train\n")


def weights_of(path: Path) -> torch.Tensor:
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(64))})
    find_checkpoint(path).load_weights(model)
    return model["w"].detach()


def test_saved_weights_and_state_come_back(store: CheckpointStore) -> None:
    path = save(store, 7, 2.5)
    checkpoint = find_checkpoint(path)
    assert (checkpoint.step, checkpoint.val_bpb) == (7, 2.5)
    assert checkpoint.load_state() == {"step": 7}
    assert torch.equal(weights_of(path), torch.full((64,), 7.0))


def test_newest_two_and_the_best_are_kept(store: CheckpointStore) -> None:
    for step, val_bpb in enumerate((3.0, 2.0, 2.5, None, 2.6), start=1):
        save(store, step, val_bpb)
    assert [checkpoint.step for checkpoint in store.all()] == [2, 4, 5]
    assert find_checkpoint(store.folder / "best").step == 2


def test_a_run_folder_its_checkpoints_and_one_of_them_all_name_a_checkpoint(
    store: CheckpointStore,
) -> None:
    save(store, 1)
    newest = save(store, 2)
    assert find_checkpoint(store.folder.parent).path == newest
    assert find_checkpoint(store.folder).path == newest
    assert find_checkpoint(newest).path == newest


def test_saving_the_same_step_again_only_adds_what_is_known(store: CheckpointStore) -> None:
    path = save(store, 3)
    saved_at = (path / "model.safetensors").stat().st_mtime_ns
    assert save(store, 3, 1.75) == path
    assert find_checkpoint(path).val_bpb == 1.75
    assert (path / "model.safetensors").stat().st_mtime_ns == saved_at


def test_no_room_is_known_before_anything_is_written(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe = save(store, 1)
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(CheckpointError, match=r"the disk has 0 MB free; safe: .*step-0000001"):
        save(store, 2)
    assert [path.name for path in store.folder.iterdir() if path.is_dir()] == [safe.name]


# By what fails first: the bytes of the longest file.
LIMITS = {"first byte": 20, "weights": 200_000, "state": 500_000}
LIMITED = """
import resource, signal, sys, torch
from pathlib import Path
from elman.training.checkpoints.store import CheckpointError, CheckpointStore, find_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write past the limit fails like a full disk
full = {"m": torch.ones(200000)}
for limit in sys.argv[2:]:
    store = CheckpointStore(Path(sys.argv[1], limit), 2, "")
    store.save({"w": torch.ones(1000)}, {}, {"step": 1, "val_bpb": None})
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    try:
        store.save({"w": torch.ones(100000)}, full, {"step": 2, "val_bpb": None})
    except CheckpointError as error:
        print("refused:", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(sorted(path.name for path in store.folder.iterdir()), find_checkpoint(store.folder).step)
"""


def test_a_write_that_fails_halfway_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    limits = [str(limit) for limit in LIMITS.values()]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), *limits],
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert len(said) == 2 * len(LIMITS), said
    for error, left in zip(said[::2], said[1::2], strict=True):
        assert error.startswith("refused:")
        assert "safe:" in error
        assert left == "['step-0000001'] 1"


def _save_for_ever(folder: Path, saved: Connection) -> None:
    torch.set_num_threads(1)  # OpenMP's threads are not in a forked process, and it waits for them
    store = CheckpointStore(folder, 2, "")
    newest = store.newest()
    step = newest.step if newest else 0
    while True:
        step += 1
        weights = {"w": torch.full((200_000,), float(step))}
        store.save(weights, {"step": step}, {"step": step, "val_bpb": None})
        saved.send(step)


@pytest.mark.required
def test_kill_at_any_moment_of_a_save_leaves_a_whole_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    fork = multiprocessing.get_context("fork")  # it has imported torch
    for attempt in range(6):
        receive, send = fork.Pipe(duplex=False)
        process = fork.Process(target=_save_for_ever, args=(folder, send))
        process.start()
        send.close()
        last = receive.recv()
        time.sleep(0.013 * (attempt + 1))
        process.kill()
        process.join()
        with suppress(EOFError):
            while True:
                last = receive.recv()
        newest = find_checkpoint(folder)
        assert newest.step >= last
        model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(200_000))})
        newest.load_weights(model)
        assert torch.equal(model["w"], torch.full((200_000,), float(newest.step)))
        assert newest.load_state() == {"step": newest.step}


def test_what_a_killed_save_left_is_cleared_and_never_taken_for_a_checkpoint(
    store: CheckpointStore,
) -> None:
    save(store, 1)
    leftover = store.folder / ".unfinished-step-0000009"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    assert find_checkpoint(store.folder).step == 1
    save(store, 2)
    assert not leftover.exists()


def strip_checksums(path: Path) -> None:
    """Make a checkpoint one of those that were saved before there were checksums."""
    meta = json.loads((path / "meta.json").read_text())
    old = {key: meta[key] for key in ("step", "val_bpb")}
    (path / "meta.json").write_text(json.dumps(old, indent=2) + "\n")


@pytest.mark.parametrize("missing", ["model.safetensors", "state.pt", "meta.json", "config.yaml"])
def test_an_incomplete_folder_is_written_again_and_not_counted(
    store: CheckpointStore, missing: str
) -> None:
    for step in (1, 2, 3):
        save(store, step, 3.0 - step / 10)
    (store.folder / "step-0000003" / missing).unlink()
    assert [checkpoint.step for checkpoint in store.all()] == [2]
    assert store.best() == find_checkpoint(store.folder / "step-0000002")
    save(store, 3, 2.7)
    assert [checkpoint.step for checkpoint in store.all()] == [2, 3]
    assert torch.equal(weights_of(store.folder), torch.full((64,), 3.0))


def test_what_is_left_of_a_removal_goes_with_the_next_save(store: CheckpointStore) -> None:
    save(store, 2)
    half = store.folder / "step-0000001"
    half.mkdir()
    (half / "state.pt").write_bytes(b"of a checkpoint that was being removed")
    assert find_checkpoint(store.folder).step == 2
    save(store, 3)
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-0000002", "step-0000003"]


def test_damage_elsewhere_stops_no_run_and_removes_nothing_newer(store: CheckpointStore) -> None:
    for step in (1, 2):
        save(store, step, 3.0 - step)
    (store.folder / "step-0000002" / "meta.json").write_text("")
    save(store, 3, 2.5)
    names = {path.name for path in store.folder.iterdir()}
    assert names == {"step-0000001", "step-0000002", "step-0000003", "best"}
    assert find_checkpoint(store.folder / "best").step == 1


def test_a_score_that_is_no_number_is_never_the_best(store: CheckpointStore) -> None:
    save(store, 1, float("nan"))
    save(store, 2, 3.0)
    save(store, 3, float("nan"))
    assert find_checkpoint(store.folder / "best").step == 2


class Malice:
    """Pickles into a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_malicious_state_is_refused_and_does_nothing(
    store: CheckpointStore, tmp_path: Path, form: str
) -> None:
    path = save(store, 1)
    witness = tmp_path / "witness"
    payload = Malice(f"touch {witness}")
    if form == "torch":
        torch.save({"optimizer": payload}, path / "state.pt")
    else:
        (path / "state.pt").write_bytes(pickle.dumps(payload))
    strip_checksums(path)  # who can write the one file can write the other
    with pytest.raises(UserError, match="cannot be loaded safely"):
        find_checkpoint(path).load_state()
    assert not witness.exists()


def test_damaged_weights_are_named(store: CheckpointStore) -> None:
    path = save(store, 1)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors: damaged"):
        weights_of(path)


def test_weights_of_another_model_are_refused(store: CheckpointStore) -> None:
    path = save(store, 1)
    with pytest.raises(UserError, match="does not fit this model"):
        find_checkpoint(path).load_weights(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("place", "message"), [("nowhere", "no such folder"), (".", "holds no checkpoint")]
)
def test_a_place_without_checkpoint_is_named(tmp_path: Path, place: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_checkpoint(tmp_path / place)


def test_a_run_before_its_first_checkpoint_is_not_called_a_wrong_folder(tmp_path: Path) -> None:
    (tmp_path / METRICS).touch()
    with pytest.raises(UserError, match="has saved no checkpoint yet; wait for its first one"):
        find_checkpoint(tmp_path)
    (tmp_path / RESULT).touch()  # it ended without one: waiting does not help
    with pytest.raises(UserError, match="holds no checkpoint"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_that_saves_none_is_not_waited_for(tmp_path: Path, ended: bool) -> None:
    (tmp_path / METRICS).touch()
    (tmp_path / "config.yaml").write_text("train: {checkpoints: false}\n")
    if ended:
        (tmp_path / RESULT).touch()
    with pytest.raises(UserError, match=r"saves no checkpoint \(train.checkpoints=false\)"):
        find_checkpoint(tmp_path)


def test_a_state_without_room_says_why(tmp_path: Path) -> None:
    """Only the state fails: torch itself names a place in its sources, and no reason."""
    (tmp_path / checkpoints.STATE).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints._save_state({"x": torch.zeros(100_000)}, tmp_path / checkpoints.STATE)
