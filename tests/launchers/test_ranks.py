"""A job of several ranks on pretend GPUs: what each is given, and how one end becomes that of all.

The ranks are stubs (``stubs/stub_ranks``): here only their processes matter.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from elman.devices import locks
from elman.devices.environment import describe_environment
from elman.devices.locks import GpuLock
from elman.launchers.outcome import telling
from tests.stubs.commands import Commands
from tests.waiting import eventually, gone

STUBS = Path(__file__).parents[1] / "stubs" / "stub_ranks"
# train.steps of a stub: 9, the rank that is meant, and how it ends.
RANK_1_NO_MEMORY, RANK_1_KILLED, UNTIL_SIGNAL, STUBBORN = 9012, 9013, 9004, 9005


class Box(Commands):
    """A machine with four pretend GPUs, and commands on it."""

    def __init__(self, folder: Path) -> None:
        own = {"PYTHONPATH": str(STUBS), "STUB_GRACE": "0.2", "COLUMNS": "160"}
        gpus = [f"GPU-{number}" for number in range(4)]
        super().__init__(folder, os.environ | own | {"TMPDIR": str(folder)}, gpus)

    def notes(self, what: str) -> list[dict[str, Any]]:
        """Return what the ranks have noted of one kind, in the order of their numbers."""
        found = [note for note in self.lines() if note["what"] == what]
        return sorted(found, key=lambda note: note["RANK"])

    def wait_for(self, what: str, number: int) -> list[dict[str, Any]]:
        """Return the notes of one kind once there are so many."""
        deadline = time.monotonic() + 180
        while len(found := self.notes(what)) < number:
            assert time.monotonic() < deadline, "the ranks did not come so far"
            time.sleep(0.05)
        return found


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Return a machine whose commands do not outlive the test."""
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    made = Box(tmp_path)
    yield made
    for started in made.started:
        started.kill()
    for note in made.notes("start"):
        with suppress(ProcessLookupError):
            os.kill(note["pid"], signal.SIGKILL)
    made.end()


def test_one_command_becomes_a_rank_for_each_gpu(box: Box) -> None:
    typed = ("model=e1", "train.minutes=1", "train.batch_size=33", "hydra.run.dir=here")
    status, output = box.run(*typed, "launcher.gpus_per_job=3", "launcher.exclude=[1]")
    assert status == 0, output
    assert "3 ranks on GPUs 0,2,3" in output
    ranks = box.notes("start")
    assert [note["RANK"] for note in ranks] == [note["LOCAL_RANK"] for note in ranks]
    assert [note["RANK"] for note in ranks] == ["0", "1", "2"]
    same = {name: {note[name] for note in ranks} for name in ranks[0] if name.isupper()}
    assert same["WORLD_SIZE"] == same["LOCAL_WORLD_SIZE"] == {"3"}
    assert same["CUDA_VISIBLE_DEVICES"] == {"GPU-0,GPU-2,GPU-3"}
    assert same["MASTER_ADDR"] == {"127.0.0.1"}
    assert len(same["MASTER_PORT"]) == 1
    assert all(note["arguments"] == list(typed) for note in ranks)
    assert not list(box.folder.glob("elman-ranks-*"))


def test_ranks_on_the_cpu_share_its_threads(box: Box) -> None:
    status, output = box.run("launcher.gpus_per_job=2", "train.device=cpu")
    assert status == 0, output
    ranks = box.notes("start")
    assert [note["CUDA_VISIBLE_DEVICES"] for note in ranks] == ["", ""]
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert all(1 <= int(note["OMP_NUM_THREADS"]) <= share for note in ranks)


@pytest.mark.parametrize(
    "typed",
    [("data=parity",), ("-m", "data=parity,s3"), ("benchmark=expressivity_quick",)],
    ids=["alone", "sweep", "suite"],
)
def test_a_task_on_several_ranks_is_refused_before_anything_starts(box: Box, typed) -> None:
    status, output = box.run(*typed, "launcher.gpus_per_job=2")
    assert status == 2, output
    (line,) = output.splitlines()
    assert line.startswith("elman: error: data=parity: a task is trained on one rank, not with 2")
    assert not box.notes("start")
    assert {path.name for path in box.folder.iterdir()} <= {"notes", "gpus.json", "locks"}


def test_ctrl_c_reaches_every_rank_once(box: Box) -> None:
    started = box.start(f"train.steps={UNTIL_SIGNAL}", "launcher.gpus_per_job=2")
    box.wait_for("start", 2)
    time.sleep(0.3)
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=180)
    assert started.returncode == 130, output
    assert [note["told"] for note in box.notes("end")] == [[signal.SIGINT]] * 2


def test_a_killed_rank_ends_the_others_and_names_itself(box: Box) -> None:
    status, output = box.run(f"train.steps={RANK_1_KILLED}", "launcher.gpus_per_job=2")
    assert status == 128 + signal.SIGKILL
    assert "elman: rank 1 on GPU-1 was killed (SIGKILL); the other ranks were ended" in output
    assert [note["told"] for note in box.notes("end")] == [[signal.SIGTERM]]


def test_ranks_that_do_not_end_are_killed(box: Box) -> None:
    started = box.start(
        f"train.steps={STUBBORN}", "launcher.gpus_per_job=2", "launcher.save_seconds=0.5"
    )
    ranks = box.wait_for("start", 2)
    time.sleep(0.3)
    started.send_signal(signal.SIGTERM)
    output, _ = started.communicate(timeout=180)
    assert started.returncode == 128 + signal.SIGKILL
    assert "killing rank 0, rank 1: not ended in time" in output
    eventually(lambda: all(gone(note["pid"]) for note in ranks))


def test_a_killed_command_lets_its_ranks_save(box: Box) -> None:
    started = box.start(f"train.steps={UNTIL_SIGNAL}", "launcher.gpus_per_job=2")
    box.wait_for("start", 2)
    time.sleep(0.3)
    started.kill()
    assert [note["told"] for note in box.wait_for("end", 2)] == [[signal.SIGTERM]] * 2


def test_a_rank_that_outlives_its_command_keeps_every_gpu_of_the_job(box: Box) -> None:
    started = box.start(f"train.steps={STUBBORN}", "launcher.gpus_per_job=2")
    first, second = (note["pid"] for note in box.wait_for("start", 2))
    assert GpuLock("GPU-0", "claim").take()
    started.kill()
    started.wait()
    os.kill(first, signal.SIGKILL)
    time.sleep(0.2)
    assert not GpuLock("GPU-0", "run").take()
    assert not GpuLock("GPU-1", "run").take()
    os.kill(second, signal.SIGKILL)
    eventually(GpuLock("GPU-0", "run").take)


def test_a_sweep_runs_as_many_jobs_as_there_are_groups(box: Box) -> None:
    box.environment["STUB_SECONDS"] = "1"
    status, output = box.run("-m", "train.seed=1,2,3", "train.steps=5", "launcher.gpus_per_job=2")
    assert status == 0, output
    assert "2 for each job, 2 at a time" in output
    assert [job["status"] for job in box.record()["jobs"]] == ["ok"] * 3
    assert sorted(job["place"] for job in box.record()["jobs"])[0::2] == ["GPUs 0,1", "GPUs 2,3"]
    starts, over = box.notes("start"), {note["pid"]: note["time"] for note in box.notes("end")}
    assert len(starts) == 6
    for note in starts:
        mine = f"GPU-{note['CUDA_VISIBLE_DEVICES'].split(',')[int(note['LOCAL_RANK'])][-1]}"
        others = [one for one in starts if mine in one["CUDA_VISIBLE_DEVICES"].split(",")]
        same_job = [one for one in others if one["MASTER_PORT"] == note["MASTER_PORT"]]
        for one in others:
            if one not in same_job:
                assert one["time"] > over[note["pid"]] or over[one["pid"]] < note["time"]


def test_the_status_of_a_job_is_that_of_the_rank_that_failed(box: Box) -> None:
    wanted = f"train.steps={RANK_1_NO_MEMORY},{RANK_1_KILLED}"
    status, output = box.run("-m", wanted, "launcher.gpus_per_job=2")
    assert status == 1
    jobs = box.record()["jobs"]
    assert [job["status"] for job in jobs] == ["oom", "killed (SIGKILL)"]
    assert jobs[0]["reason"] == f"rank 1 on {_second_gpu(jobs[0])}: oom: no memory here"
    assert jobs[1]["reason"].endswith("was killed (SIGKILL); the other ranks were ended")
    # Rank 0 was told to end and wrote that; the table says what happened.
    assert "interrupted" not in output


def test_a_result_names_every_gpu_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert "gpus_of_job" not in describe_environment(torch.device("cpu"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert describe_environment(torch.device("cpu"))["gpus_of_job"] == ["GPU-a", "GPU-b"]


def _second_gpu(job: dict[str, Any]) -> str:
    return f"GPU-{job['place'].rpartition(',')[2]}"


@pytest.mark.parametrize(
    ("statuses", "index"),
    [
        ([0, 0], 0),
        ([130, 0], 0),
        ([130, 1], 1),
        ([1, 1, 4], 2),
        ([1, -9], 0),
        ([-9, -6, 1], 0),
        ([130, 3, 4], 1),
    ],
    ids=str,
)
def test_which_rank_tells_how_a_job_ended(statuses: list[int], index: int) -> None:
    assert telling(statuses) == index
