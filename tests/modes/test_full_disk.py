"""Runs on a disk that is full from the start, or fills up while they train."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from elman.base import disk
from elman.base.disk import Appender
from elman.base.exit_status import ExitStatus
from elman.evaluation.result import RunResult
from elman.training import loop, recorder
from elman.training.checkpoints import store
from tests.modes.forked import Commands, ForkedCommand

FULL = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG]
TINY = (
    "model.dim=128",
    "model.depth=1",
    "model.n_heads=2",
    "model.n_state=8",
    "train.batch_size=2",
    "train.chunk_size=8",
    "train.val_every=null",
    "data.val_sample=64",
    "log.every=1",
    "log.plot=false",
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a disk of 6 MB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no program mount")
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Fill a disk to its last block, and return the file that does."""
    filler = place / "filler"
    with filler.open("ab", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    assert os.statvfs(place).f_bavail == 0
    return filler


Start = Callable[..., ForkedCommand]


@pytest.fixture
def start(small_disk: Path, text_file: Path, commands: Commands) -> Iterator[Start]:
    """Return a function that starts the tiny run on the small disk."""
    started: list[ForkedCommand] = []

    def run(*overrides: str) -> ForkedCommand:
        started.append(commands.start(small_disk, f"data.path={text_file}", *TINY, *overrides))
        return started[-1]

    yield run
    for process in started:
        process.kill()


def wait_for(place: Path, pattern: str, process: ForkedCommand) -> Path:
    """Wait until a path below the disk is there, and return it."""
    deadline = time.monotonic() + 180
    while not (found := list(place.glob(pattern))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found[0]


def of(place: Path, name: str) -> str:
    (path,) = place.glob(f"outputs/*/*/{name}")
    return path.read_text()


def test_a_disk_that_is_full_from_the_start_is_one_line_and_no_folder(
    small_disk: Path, start: Start
) -> None:
    filler = fill(small_disk)
    _, said = start("train.steps=3").communicate(timeout=180)
    assert re.fullmatch(
        rf"elman: error: {small_disk}/outputs/.*: cannot be written \(No space left on device\); "
        r"free some space there, or name a folder on another disk with hydra\.run\.dir=<folder>\n",
        said,
    )
    assert list(small_disk.iterdir()) == [filler]


def test_a_disk_without_room_for_one_checkpoint_is_refused_before_the_first_step(
    small_disk: Path, start: Start
) -> None:
    filler = fill(small_disk)
    os.truncate(filler, filler.stat().st_size - 1_500_000)
    run = start("train.steps=3", "model.depth=4", "model.n_heads=8")
    _, said = run.communicate(timeout=180)
    last = said.splitlines()[-1]
    assert run.returncode == 2, said
    assert re.search(r"a checkpoint needs at least .* and the disk has .* free; make room", last)
    assert list(small_disk.iterdir()) == [filler]


def test_a_disk_that_fills_up_and_is_cleared_loses_nothing(small_disk: Path, start: Start) -> None:
    run = start("train.steps=400", "train.save_every=40")
    wait_for(small_disk, "outputs/*/*/checkpoints/step-0000040", run)
    filler = fill(small_disk)
    time.sleep(1)
    filler.unlink()
    _, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    assert said.count("wait in memory") == 1, said
    assert said.count("can be written again") <= 2, said
    assert "Traceback" not in said
    records = map(json.loads, of(small_disk, "metrics.jsonl").splitlines())
    steps = [record["step"] for record in records if record["kind"] == "step"]
    assert steps == list(range(1, 401))
    assert of(small_disk, "train.log").count("step ") > 400
    assert json.loads(of(small_disk, "result.json"))["status"] == "ok"


def test_a_disk_that_stays_full_costs_the_weights_and_not_the_result(
    small_disk: Path, start: Start
) -> None:
    run = start("train.steps=300", "train.save_every=40", "log.plot=true")
    saved = wait_for(small_disk, "outputs/*/*/checkpoints/step-0000040", run)
    fill(small_disk)
    said = "".join(run.communicate(timeout=120))
    assert run.returncode == 1, said
    lines = said.splitlines()
    end = next(n for n, line in enumerate(lines) if line.startswith("elman: crash"))
    assert re.fullmatch(
        r"elman: crash: .*: a checkpoint needs \S+ MB and the disk has 0 MB free; "
        r"safe: .*step-\d+; make room there",
        lines[end],
    )
    warned = [line for line in lines if line.startswith("warning")]
    assert len(warned) == 4, warned  # logs wait; no checkpoint; what is lost; no picture
    assert "Traceback" not in said
    result = json.loads(of(small_disk, "result.json"))
    assert (result["status"], result["steps"]) == ("crash", 300)
    assert result["val_bpb"] > 0
    assert saved.is_dir()


# ------------------------------------------------------------------ the same without a disk


class _Disk:
    """Lets writes through :class:`Appender` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.part: int | None = None
        self._write = os.write
        monkeypatch.setattr(disk.os, "write", self.write)

    def write(self, descriptor: int, content: bytes) -> int:
        """Write as much as there is room for, and fail where there is none."""
        if self.part:
            content, self.part = content[: self.part], 0
        elif self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return self._write(descriptor, content)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> _Disk:
    """Return a disk that can be made full."""
    monkeypatch.setattr(Appender, "_waiting", set())
    return _Disk(monkeypatch)


@pytest.mark.parametrize("number", FULL)
def test_what_finds_no_room_waits_and_is_written_once_in_order(
    tmp_path: Path, capsys, pretended: _Disk, number: int
) -> None:
    one, two = Appender(tmp_path / "one"), Appender(tmp_path / "two")
    one.append(b"first\n")
    pretended.error, pretended.part = number, 3  # a line is cut off in the middle
    one.append(b"second\n")
    two.append(b"other\n")
    one.append(b"third\n")
    assert capsys.readouterr().err == (
        f"warning: {tmp_path}/one: {os.strerror(number)}; metrics and log lines wait in memory "
        "until there is room, and the run goes on\n"
    )
    assert (tmp_path / "one").read_bytes() == b"first\nsec"
    pretended.error = None
    two.append(b"more\n")
    one.append(b"fourth\n")
    assert capsys.readouterr().err.count("can be written again") == 1
    assert (one.close(), two.close()) == (0, 0)
    assert (tmp_path / "one").read_text() == "first\nsecond\nthird\nfourth\n"
    assert (tmp_path / "two").read_text() == "other\nmore\n"


def test_what_waits_is_bounded_and_what_is_lost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretended: _Disk
) -> None:
    monkeypatch.setattr(disk, "HELD_BYTES", 10)
    pretended.error = errno.ENOSPC
    file = Appender(tmp_path / "file")
    for _ in range(4):
        file.append(b"12345\n")
    assert file.close() == 24


@pytest.mark.parametrize("number", FULL)
def test_training_goes_on_without_logs_and_checkpoints(
    train, capsys, monkeypatch: pytest.MonkeyPatch, pretended: _Disk, number: int
) -> None:
    take = loop.take_step
    save_file = store.save_file

    def full_after_two(state: Any, share: float) -> Any:
        pretended.error = {2: number, 5: None}.get(state.step, pretended.error)
        return take(state, share)

    def save(*arguments: Any) -> None:
        if pretended.error is not None:
            raise OSError(number, os.strerror(number))
        save_file(*arguments)

    monkeypatch.setattr(loop, "take_step", full_after_two)
    monkeypatch.setattr(store, "save_file", save)
    run = train("train.save_every=1", "train.val_every=null", "log.every=1", "log.tensorboard=true")
    said = "".join(capsys.readouterr())
    assert (run.status, run.result["status"]) == (ExitStatus.OK, "ok")
    assert [record["step"] for record in run.records("step")] == [1, 2, 3, 4, 5, 6]
    assert said.count("wait in memory") == 1
    assert said.count("; tried again every minute") == 1
    assert said.count("saved: checkpoints can be written again") == 1
    assert _events(run.folder / "tensorboard") == [1, 2, 3, 4, 5, 6]


def _events(folder: Path) -> list[int]:
    """Return the steps that TensorBoard reads of the training loss."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return [event.step for event in read.Scalars("step/loss")]


def test_a_dashboard_that_fails_is_left_alone(
    train, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr(recorder._TensorBoard, "scalars", broken)
    run = train("log.tensorboard=true")
    assert run.result["status"] == "ok"
    assert capsys.readouterr().out.count("tensorboard gets no more numbers (no network)") == 1


def test_a_result_without_room_is_printed(train, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    from elman.modes import train as mode

    write = mode.write_result

    def fail_after(folder: Path, result: RunResult) -> None:
        write(folder, result)  # what the fixture reads
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(mode, "write_result", fail_after)
    run = train()
    assert run.status == ExitStatus.FAILED
    line = next(line for line in capsys.readouterr().err.splitlines() if "result.json" in line)
    numbers = json.loads(line[line.index("{") :])
    assert numbers["val_bpb"] == run.result["val_bpb"]
