"""Run folders: nobody else's, locked, and restored from what they say about themselves."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.config.validate import validate
from elman.runs.folder import (
    RunLock,
    claim_folder,
    config_hash,
    discard_folder,
    make_folder,
    read_config,
    run_name,
    write_config,
)

HOLDER = """
import sys, time
from pathlib import Path
from elman.runs.folder import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""
MAKER = """
import sys
from pathlib import Path
from elman.runs.folder import make_folder
sys.stdin.readline()
for _ in range(13):
    print(make_folder(Path(sys.argv[1]), "e1_0"))
"""


def test_fifty_starts_at_one_moment_make_fifty_folders(tmp_path: Path) -> None:
    # A clock that ticks every millisecond, so that the starts really meet.
    def coarse() -> datetime:
        time = datetime.now()
        return time.replace(microsecond=time.microsecond // 1000 * 1000)

    with ThreadPoolExecutor(50) as pool:
        made = list(pool.map(lambda _: make_folder(tmp_path, "e1_0", coarse), range(50)))
    assert len(set(made)) == 50
    assert all(folder.is_dir() for folder in made)


def test_four_processes_make_fifty_two_folders(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    made = [line for process in started for line in process.communicate("\n")[0].splitlines()]
    assert len(made) == len(set(made)) == 52


def test_name_says_when_and_what(tmp_path: Path) -> None:
    config = compose_config(["model=e1"])
    time = datetime(2026, 11, 20, 10, 8, 7, 42)
    folder = make_folder(tmp_path, run_name(config), lambda: time)
    expected = f"2026-11-20/10-08-07-000042_e1_{config_hash(config)}"
    assert folder.relative_to(tmp_path).as_posix() == expected


def test_model_name_is_made_safe_for_a_path() -> None:
    config = compose_config(["model.name='a/b c'"])
    assert run_name(config) == f"a-b-c_{config_hash(config)}"


def test_hash_tells_runs_apart_but_not_a_run_from_its_resumption() -> None:
    run, other, resumed = (
        compose_config([f"train.steps={steps}", *more])
        for steps, more in ((5, []), (6, []), (5, ["train.resume=somewhere"]))
    )
    assert config_hash(run) == config_hash(resumed) != config_hash(other)


@pytest.mark.parametrize("root", ["file", "file/below"])
def test_a_root_that_cannot_be_made_is_one_line(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot make this folder .* hydra\.run\.dir="):
        make_folder(tmp_path / root, "e1_0")
    with pytest.raises(UserError, match=r"cannot make this folder .* hydra\.sweep\.dir="):
        make_folder(tmp_path / root, "sweep", key="hydra.sweep.dir")


@pytest.mark.parametrize("exists", [True, False], ids=["empty", "new"])
def test_of_many_claims_on_one_folder_one_wins(tmp_path: Path, exists: bool) -> None:
    for round_ in range(20):
        folder = tmp_path / str(round_)
        if exists:
            folder.mkdir()

        def claim(_: int, folder: Path = folder) -> bool:
            try:
                claim_folder(folder, "hydra.run.dir")
            except UserError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(claim, range(8))) == 1


def test_claim_leaves_an_occupied_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match=r"hydra\.run\.dir=.*: is not empty; name a new folder"):
        claim_folder(tmp_path, "hydra.run.dir")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("left", ["result.json", "checkpoints", "metrics.jsonl", "probe.json"])
def test_discard_keeps_a_run_that_has_begun(tmp_path: Path, left: str) -> None:
    folder = make_folder(tmp_path / "outputs", "e1_0")
    (folder / left).write_text("something")
    discard_folder(folder)
    assert (folder / left).exists()


def test_discard_removes_what_never_began_and_what_that_leaves_empty(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "outputs", "e1_0")
    (folder / "train.log").touch()
    (folder / "metrics.jsonl").touch()
    discard_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_discard_keeps_a_folder_of_the_users_around_it(tmp_path: Path) -> None:
    folder = claim_folder(tmp_path / "mine" / "run", "hydra.run.dir")
    discard_folder(folder)
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_lock_is_refused_to_another_process_and_freed_by_its_death(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"another process \(pid {holder.pid}\) is running"):
            RunLock(tmp_path).acquire()
        holder.kill()
    with RunLock(tmp_path):
        pass


def test_lock_is_reentrant_in_a_process_until_released_as_often(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER.replace("time.sleep(60)", ""), str(tmp_path)]
    with RunLock(tmp_path):
        with RunLock(tmp_path):
            pass
        assert subprocess.run(command, capture_output=True).returncode == 1
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=e88_tiny"],
        ["model=e1", "optim=schedulefree", "optim.eps=1e-12"],
        ["model=e75h4n16", "optim=legacy", "train.minutes=0.5", "data.path=[a,'b ${c} #']"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_config_file_restores_the_configuration(tmp_path: Path, overrides: list[str]) -> None:
    config = compose_config(overrides[:3])
    if len(overrides) > 3:
        data = config.data.model_copy(update={"path": ["a", "b ${c} #"]})
        config = config.model_copy(update={"data": data})
    write_config(tmp_path, config)
    assert validate(read_config(tmp_path, "train.resume")) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cannot be read"),
        ("- a", "not a configuration"),
        ("\xff\xfe", "not a configuration"),
        ("!!python/object/apply:os.system ['touch hacked']", "cannot be read"),
    ],
    ids=["broken", "a list", "no mapping", "code"],
)
def test_a_damaged_config_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as refusal:
        read_config(tmp_path, "train.resume")
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
