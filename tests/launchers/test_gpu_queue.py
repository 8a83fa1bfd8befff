"""The queue over pretend GPUs, with real processes: no meeting, and every way of dying."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from elman.devices import locks, nvml
from elman.devices.locks import GpuLock
from tests.waiting import eventually, gone

STUBS = Path(__file__).parents[1] / "stubs" / "stub_modes"


class Machine:
    """A folder with pretend GPUs, and launchers of stub jobs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, []
        (folder / "notes").mkdir()

    def pretend(self, *gpus: dict[str, Any]) -> None:
        """Set what the driver says from now on."""
        scratch = self.folder / "gpus.tmp"
        scratch.write_text(json.dumps([{"uuid": f"GPU-{n}"} | gpu for n, gpu in enumerate(gpus)]))
        scratch.rename(self.folder / "gpus.json")

    def launch(
        self,
        ends: str,
        first: int = 1,
        seconds: float = 0.1,
        save: float = 60,
        wait: float = 60,
        each: int = 1,
    ) -> subprocess.Popen[str]:
        """Start a launcher with a job for each letter, on so many GPUs each."""
        environment = os.environ | {
            nvml.PRETENDED: str(self.folder / "gpus.json"),
            locks.FOLDER: str(self.folder / "locks"),
            "PYTHONPATH": str(STUBS),
        }
        numbers = [str(value) for value in (seconds, save, wait, each)]
        script = str(STUBS / "stub_launcher.py")
        started = subprocess.Popen(
            [sys.executable, script, str(self.folder), str(first), ends, *numbers],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(started)
        return started

    def notes(self) -> list[dict[str, Any]]:
        """Return everything that the jobs have noted, in the order of time."""
        texts = [path.read_text() for path in (self.folder / "notes").glob("*.jsonl")]
        found = [json.loads(line) for text in texts for line in text.splitlines()]
        return sorted(found, key=lambda note: note["time"])

    def wait_for(self, what: str, number: int = 1) -> list[dict[str, Any]]:
        """Return the notes of one kind once there are so many."""
        deadline = time.monotonic() + 180
        while len(found := [note for note in self.notes() if note["what"] == what]) < number:
            assert time.monotonic() < deadline, "the jobs did not come so far"
            time.sleep(0.05)
        return found

    def intervals(self) -> dict[str, list[tuple[float, float]]]:
        """Return when each GPU was in use by jobs that ended well, in order."""
        starts: dict[int, dict[str, Any]] = {}
        found = defaultdict(list)
        for note in self.notes():
            if note["what"] == "start":
                starts[note["pid"]] = note
            elif note["what"] == "end":
                for gpu in note["gpu"].split(","):
                    found[gpu].append((starts[note["pid"]]["time"], note["time"]))
        return {gpu: sorted(pairs) for gpu, pairs in found.items()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Return a machine whose launchers do not outlive the test."""
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    made = Machine(tmp_path)
    yield made
    for started in made.started:
        started.kill()
        started.communicate()


def ends(launcher: subprocess.Popen[str]) -> list[int | None]:
    """Return the exit status of every job of a launcher that ends by itself."""
    output, errors = launcher.communicate(timeout=120)
    assert output, errors
    return json.loads(output)


def gaps(machine: Machine) -> list[float]:
    """Return the times between the jobs of each GPU; negative where two overlap."""
    pairs = machine.intervals().values()
    return [b[0] - a[1] for one in pairs for a, b in pairwise(one)]


@pytest.mark.parametrize(
    ("jobs", "gpus"),
    [(10, 2), pytest.param(40, 4, marks=pytest.mark.slow)],
    ids=["10 jobs over 2 GPUs", "40 jobs over 4 GPUs"],
)
def test_no_two_jobs_meet(machine: Machine, jobs: int, gpus: int) -> None:
    machine.pretend(*[{}] * gpus)
    assert ends(machine.launch("w" * jobs, seconds=0.3)) == [0] * jobs
    used = machine.intervals()
    assert set(used) == {f"GPU-{n}" for n in range(gpus)}
    assert sum(map(len, used.values())) == jobs
    assert min(gaps(machine)) > 0


@pytest.mark.parametrize(
    ("jobs", "gpus"),
    [(4, 2), pytest.param(20, 4, marks=pytest.mark.slow)],
    ids=["4 jobs each over 2 GPUs", "20 jobs each over 4 GPUs"],
)
def test_two_launchers_never_meet(machine: Machine, jobs: int, gpus: int) -> None:
    machine.pretend(*[{}] * gpus)
    started = [machine.launch("w" * jobs, first) for first in (1, 101)]
    assert [ends(launcher) for launcher in started] == [[0] * jobs] * 2
    assert sum(map(len, machine.intervals().values())) == 2 * jobs
    assert min(gaps(machine)) > 0


def test_launchers_of_groups_and_of_single_gpus_never_meet_nor_block_each_other(
    machine: Machine,
) -> None:
    # Either group launcher could hold two of the three GPUs that both need, for ever.
    machine.pretend({}, {}, {})
    started = [machine.launch("ww", first, each=2) for first in (1, 101)]
    started.append(machine.launch("w", 201))
    assert [ends(launcher) for launcher in started] == [[0, 0], [0, 0], [0]]
    used = {note["gpu"].count(",") + 1 for note in machine.notes()}
    assert used == {1, 2}
    assert sum(map(len, machine.intervals().values())) == 2 * 2 * 2 + 1
    assert min(gaps(machine)) > 0


def test_a_gpu_without_more_jobs_is_free_for_others_while_the_sweep_goes_on(
    machine: Machine,
) -> None:
    machine.pretend({}, {})
    # The second fails at once; the third takes its GPU, for good, before the first has ended.
    launcher = machine.launch("wfs", seconds=4)
    machine.wait_for("stubborn")
    (note,) = machine.wait_for("end")
    eventually(lambda: gone(note["pid"]))
    eventually(GpuLock(note["gpu"], "claim").take)
    eventually(GpuLock(note["gpu"], "run").take)
    assert launcher.poll() is None


def test_a_killed_job_and_one_without_disk_do_not_stop_the_rest(machine: Machine) -> None:
    machine.pretend({})
    assert ends(machine.launch("wkfw")) == [0, -signal.SIGKILL, 1, 0]


def test_a_killed_launcher_takes_its_jobs_along_and_frees_the_gpu(machine: Machine) -> None:
    machine.pretend({})
    launcher = machine.launch("ww", seconds=600)
    (job,) = machine.wait_for("start")
    assert not GpuLock("GPU-0", "run").take()
    launcher.kill()
    eventually(lambda: gone(job["pid"]))
    assert GpuLock("GPU-0", "claim").take()
    assert GpuLock("GPU-0", "run").take()


def test_a_job_that_outlives_its_launcher_keeps_the_gpu(machine: Machine) -> None:
    machine.pretend({})
    launcher = machine.launch("s")
    (job,) = machine.wait_for("stubborn")
    launcher.kill()
    launcher.communicate()
    second = machine.launch("w", first=11)
    time.sleep(1.5)
    assert not gone(job["pid"])
    assert len(machine.wait_for("start")) == 1
    os.kill(job["pid"], signal.SIGKILL)
    assert ends(second) == [0]


def test_launcher_and_job_killed_leave_a_free_gpu(machine: Machine) -> None:
    machine.pretend({})
    launcher = machine.launch("s")
    (job,) = machine.wait_for("stubborn")
    launcher.kill()
    os.kill(job["pid"], signal.SIGKILL)
    assert ends(machine.launch("w", first=11)) == [0]


@pytest.mark.parametrize("patience", ["two signals", "time"])
def test_a_job_that_ignores_signals_is_killed(machine: Machine, patience: str) -> None:
    machine.pretend({})
    launcher = machine.launch("sw", save=600 if patience == "two signals" else 0.5)
    machine.wait_for("stubborn")
    launcher.send_signal(signal.SIGTERM)
    if patience == "two signals":
        time.sleep(0.5)
        launcher.send_signal(signal.SIGINT)
    assert ends(launcher) == [-signal.SIGKILL, None]


def test_a_gpu_that_others_use_is_left_to_them(machine: Machine) -> None:
    busy = {"used_mib": 4200, "processes": [{"pid": os.getpid(), "mib": 4200}]}
    machine.pretend(busy, {})
    launcher = machine.launch("www", seconds=0.3)
    machine.wait_for("end", 2)
    machine.pretend({}, busy)
    assert ends(launcher) == [0, 0, 0]
    assert [note["gpu"] for note in machine.wait_for("start", 3)][:2] == ["GPU-1"] * 2


def test_waiting_for_a_gpu_ends_and_says_who_has_it(machine: Machine) -> None:
    machine.pretend({"used_mib": 4200, "processes": [{"pid": os.getpid(), "mib": 4200}]})
    launcher = machine.launch("w", wait=1.5)
    output, errors = launcher.communicate(timeout=180)
    assert json.loads(output) == [None]
    assert f"GPU 0: used by pid {os.getpid()} (" in errors
    assert "4,200 MiB" in errors
    assert "no place was free" in errors


def test_a_driver_that_disappears_stops_nothing_that_runs(machine: Machine) -> None:
    machine.pretend({})
    launcher = machine.launch("ww", seconds=1)
    machine.wait_for("start")
    (machine.folder / "gpus.json").rename(machine.folder / "hidden.json")
    machine.wait_for("end")
    time.sleep(1)
    assert len(machine.wait_for("start")) == 1
    (machine.folder / "hidden.json").rename(machine.folder / "gpus.json")
    assert ends(launcher) == [0, 0]


def test_a_gpu_on_which_every_job_fails_does_not_eat_the_queue(machine: Machine) -> None:
    machine.pretend({}, {})
    launcher = machine.launch("xxxxxxx", seconds=1.5)
    output, errors = launcher.communicate(timeout=120)
    assert sorted(json.loads(output)) == [0] * 4 + [1] * 3
    assert "GPU 0: quarantined for 60 s: 3 jobs in a row failed there at once" in errors
    assert set(machine.intervals()) == {"GPU-1"}
