"""Sweeps whose jobs come into being while they run, on each launcher of one machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elman.base.exit_status import ExitStatus
from tests.stubs.commands import Commands
from tests.waiting import eventually, gone

SCRIPT = Path(__file__).parents[1] / "stubs" / "growing_sweep.py"
# Of the stub modes: a job that waits for a signal to save, and ends well when it is started again.
WAITS = 908


class Growing(Commands):
    """A folder with two pretend GPUs, and sweeps in it that grow to four jobs and then to five."""

    before = (str(SCRIPT), "-m")

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(folder, environment, ["GPU-a", "GPU-b"])
        self.environment |= {"STUB_ASKS": str(folder / "asks.jsonl"), "STUB_JOBS": "4"}

    def asks(self) -> list[dict[str, int]]:
        """Return every question, with how many jobs came, and how many waited and ran then."""
        return [json.loads(line) for line in (self.folder / "asks.jsonl").read_text().splitlines()]

    def starts(self) -> list[int]:
        """Return the seeds of the jobs that were started, in order of time."""
        found = []
        for path in (self.folder / "notes").glob("*.jsonl"):
            notes = [json.loads(line) for line in path.read_text().splitlines()]
            found += [(note["time"], int(path.stem)) for note in notes if note["what"] == "start"]
        return [seed for _, seed in sorted(found)]

    def waiting_jobs(self, number: int) -> None:
        """Wait until so many jobs train."""
        eventually(lambda: len(list(self.folder.rglob("waiting"))) >= number)


@pytest.fixture
def growing(tmp_path: Path, stub_environment: dict[str, str]) -> Iterator[Growing]:
    """Return a folder whose sweeps do not outlive the test."""
    made = Growing(tmp_path, stub_environment)
    yield made
    made.end()


@pytest.mark.parametrize("launcher", ["local", "gpus"])
def test_jobs_come_into_being_by_the_results_of_earlier_ones(
    growing: Growing, launcher: str
) -> None:
    status, output = growing.run(f"launcher={launcher}", "train.steps=3")
    assert status == 0, output
    record = growing.record()
    jobs = record["jobs"]
    assert [job["number"] for job in jobs] == [1, 2, 3, 4, 5]
    assert {job["status"] for job in jobs} == {"ok"}
    assert record["source"] == {"state": "confirming"}
    assert [job["tuning"]["phase"] for job in jobs] == ["trial"] * 4 + ["best"]
    recorded = [
        json.loads(line) for line in (growing.sweep / "jobs.jsonl").read_text().splitlines()
    ]
    assert [line["tuning"] for line in recorded] == [job["tuning"] for job in jobs]
    seeds = [job["seed"] for job in jobs]
    assert seeds[-1] == 4005  # every result was recorded before the question
    assert sorted(growing.starts()) == sorted(seeds)
    if launcher == "local":
        assert seeds == [1, 1002, 2003, 3004, 4005]
    assert [f"[{number} of 4] " in output for number in (1, 4, 5)] == [True, True, False]
    assert "[5 of 5] " in output
    # A place that takes a job, and one process that waits for it: no more is asked for.
    places = 1 if launcher == "local" else 2
    assert all(ask["waiting"] + ask["came"] <= places for ask in growing.asks())


@pytest.mark.parametrize("launcher", ["local", "gpus"])
def test_after_a_kill_no_job_is_lost_or_tried_twice(growing: Growing, launcher: str) -> None:
    started = growing.start(f"launcher={launcher}", f"train.steps={WAITS}")
    places = 1 if launcher == "local" else 2
    growing.waiting_jobs(places)
    before = growing.record()["jobs"]
    pids = [json.loads(path.read_text().splitlines()[-1])["pid"] for path in _notes(growing)]
    started.kill()
    started.wait()
    for pid in pids:
        if launcher == "local":  # its jobs outlive it
            os.kill(pid, signal.SIGINT)
        eventually(lambda pid=pid: gone(pid))
    (growing.folder / "notes" / "go").touch()
    status, output = growing.run(f"sweep.resume={growing.sweep}")
    assert status == 0, output
    record = growing.record()
    assert [job["status"] for job in record["jobs"]] == ["ok"] * 5
    kept = [(job["number"], job["seed"], job["folder"], job["tuning"]) for job in record["jobs"]]
    assert kept[: len(before)] == [
        (job["number"], job["seed"], job["folder"], job["tuning"]) for job in before
    ]
    starts = growing.starts()
    again = [seed for seed in set(starts) if starts.count(seed) > 1]
    assert len(again) == places  # only those that ran go on
    assert record["jobs"][-1]["seed"] == 4005


def _notes(growing: Growing) -> list[Path]:
    return list((growing.folder / "notes").glob("*.jsonl"))


@pytest.mark.parametrize("launcher", ["local", "gpus"])
def test_after_ctrl_c_no_job_is_asked_for(growing: Growing, launcher: str) -> None:
    started = growing.start(f"launcher={launcher}", f"train.steps={WAITS}")
    growing.waiting_jobs(1 if launcher == "local" else 2)
    # Two jobs wait beside those that run on the two GPUs; then the launcher asks for no more.
    came = 1 if launcher == "local" else 4
    eventually(lambda: sum(ask["came"] for ask in growing.asks()) >= came)
    asked = len(growing.asks())
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=120)
    assert started.returncode == ExitStatus.INTERRUPTED, output
    assert len(growing.asks()) == asked
    states = [job["status"] for job in growing.record()["jobs"]]
    assert states[0] == "interrupted"
    assert set(states) <= {"interrupted", "not started"}
    assert "sweep.resume=" in output


def test_a_job_that_came_later_is_queued_again_after_a_preemption(growing: Growing) -> None:
    started = growing.start("launcher=gpus", f"train.steps={WAITS}")
    growing.waiting_jobs(2)
    first = growing.starts()[0]
    note = json.loads((growing.folder / "notes" / f"{first}.jsonl").read_text().splitlines()[0])
    os.kill(note["pid"], signal.SIGUSR2)
    eventually(lambda: growing.starts().count(first) == 2)
    (growing.folder / "notes" / "go").touch()
    output, _ = started.communicate(timeout=180)
    assert started.returncode == 0, output
    assert "preempted: queued again" in output
    assert [job["status"] for job in growing.record()["jobs"]] == ["ok"] * 5
    starts = growing.starts()
    assert {seed: starts.count(seed) for seed in starts if starts.count(seed) > 1} == {first: 2}


def test_a_launcher_that_cannot_ask_is_refused_and_leaves_nothing(growing: Growing) -> None:
    status, output = growing.run("hydra/launcher=basic", "train.steps=3")
    assert status == ExitStatus.USER_ERROR
    (line,) = [line for line in output.splitlines() if line.startswith("elman: error:")]
    assert "hydra/launcher=basic: it takes all jobs at the start" in line
    assert line.endswith("type launcher=gpus, launcher=local or launcher=slurm in its place")
    assert not (growing.folder / "outputs").exists()
