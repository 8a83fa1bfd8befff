"""The real thing under load: real training in every job, on a CPU under pretend GPUs.

With ``-s`` the load test prints the figures of docs/sweeps.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from elman.devices import locks, nvml

pytestmark = pytest.mark.slow

NOTED = Path(__file__).parents[1] / "stubs" / "noted_jobs"


class Machine:
    """A folder with pretend GPUs, and sweeps of real training in it."""

    def __init__(self, folder: Path, gpus: int, text: Path) -> None:
        self.folder, self.text = folder, text
        (folder / "notes").mkdir()
        (folder / "gpus.json").write_text(json.dumps([{"uuid": f"GPU-{n}"} for n in range(gpus)]))

    def start(self, *arguments: str, sweep: Path | None = None, **more: str) -> Any:
        """Start a sweep, in a folder that is named, or the one that is resumed."""
        environment = os.environ | {
            nvml.PRETENDED: str(self.folder / "gpus.json"),
            locks.FOLDER: str(self.folder / "locks"),
            "PYTHONPATH": str(NOTED),
            "JOB_NOTES": str(self.folder / "notes"),
            "OMP_NUM_THREADS": "1",
            **more,
        }
        place = [f"hydra.sweep.dir={sweep}"] if sweep else []
        return subprocess.Popen(
            [sys.executable, "-m", "elman", "-m", *arguments, *place],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def train(self, *arguments: str) -> list[str]:
        """Return the settings of small but real jobs."""
        small = ("model=e88_tiny", f"data.path={self.text}", "log.tensorboard=false")
        return [*small, *arguments]

    def notes(self) -> dict[int, dict[str, dict[str, Any]]]:
        """Return what each job's process has noted, by what it is about."""
        found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for path in (self.folder / "notes").glob("*.jsonl"):
            for note in map(json.loads, path.read_text().splitlines()):
                found[note["pid"]][note["what"]] = note
        return found


def results(sweep: Path) -> list[dict[str, Any]]:
    """Return what the jobs have written, in their order."""
    return [json.loads(path.read_text()) for path in sorted(sweep.glob("0*/result.json"))]


@pytest.mark.parametrize(
    ("gpus", "jobs", "seconds"), [(2, 8, 8), (4, 40, 20)], ids=["8 over 2", "40 over 4"]
)
def test_a_gpu_is_idle_under_three_seconds_between_real_jobs(
    tmp_path: Path, text_file: Path, gpus: int, jobs: int, seconds: int
) -> None:
    """Each job trains, and then waits as one does whose GPU does the work: the CPU is free."""
    machine = Machine(tmp_path, gpus, text_file)
    seeds = ",".join(map(str, range(jobs)))
    began = time.monotonic()
    sweep = machine.start(
        *machine.train("train.steps=10", f"train.seed={seeds}"), JOB_SECONDS=str(seconds)
    )
    output, _ = sweep.communicate(timeout=1200)
    assert sweep.returncode == 0, output
    took = time.monotonic() - began
    used = defaultdict(list)
    for one in machine.notes().values():
        assert one["start"]["torch"]
        used[one["start"]["gpu"]].append((one["start"]["time"], one["end"]["time"]))
    assert sum(map(len, used.values())) == jobs
    gaps = sorted(b[0] - a[1] for pairs in used.values() for a, b in pairwise(sorted(pairs)))
    print(
        f"{jobs} jobs over {gpus} GPUs in {took:.0f} s; idle between two jobs: "
        f"median {median(gaps):.2f} s, largest {gaps[-1]:.2f} s, smallest {gaps[0]:.2f} s"
    )
    assert gaps[0] > 0
    assert median(gaps) < 3


def test_a_run_killed_before_or_after_its_checkpoint_is_finished(
    tmp_path: Path, text_file: Path
) -> None:
    machine = Machine(tmp_path, 2, text_file)
    folder = tmp_path / "sweep"
    often = machine.train("train.steps=60", "train.save_every=20", "train.seed=1,2")
    launcher = machine.start(*often, sweep=folder)
    _wait(lambda: len([one for one in machine.notes().values() if "start" in one]) == 2)
    early, late = sorted(machine.notes(), key=lambda pid: machine.notes()[pid]["start"]["job"])
    os.kill(early, signal.SIGKILL)
    _wait(lambda: any(folder.glob("02*/checkpoints/step-*")))
    os.kill(late, signal.SIGKILL)
    output, _ = launcher.communicate(timeout=120)
    assert output.count("killed (SIGKILL) after") == 2
    again = machine.start(f"sweep.resume={folder}")
    output, _ = again.communicate(timeout=240)
    assert again.returncode == 0, output
    assert [(one["status"], one["steps"]) for one in results(folder)] == [("ok", 60)] * 2


@contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[dict[str, str]]:
    """Mount a small disk, or, where that is not allowed, let no job write a file of a megabyte."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)],
        capture_output=True,
    )
    try:
        yield {} if mounted.returncode == 0 else {"JOB_FILE_BYTES": "1000000"}
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_on_a_full_disk_nothing_earlier_is_lost(tmp_path: Path, text_file: Path) -> None:
    machine = Machine(tmp_path, 1, text_file)
    disk = tmp_path / "disk"
    disk.mkdir()
    with _small_disk(disk, 9) as limits:
        wanted = machine.train("train.steps=10", "train.seed=1,2,3")
        sweep = machine.start(*wanted, sweep=disk / "sweep", **limits)
        output, _ = sweep.communicate(timeout=240)
        assert sweep.returncode == 1, output
        found = results(disk / "sweep")
        statuses = [one["status"] for one in found]
        # Where not even a checkpoint fits, the job is refused before its first step.
        assert statuses[-1] == ("crash" if limits else "ok")
        end = "[3/3] crash" if limits else "[3/3] refused"
        (line,) = [text for text in output.splitlines() if text.startswith(end)]
        assert f"{disk}/sweep/03_e88_tiny_" in line
        assert "disk" in line or "File too large" in line
        if not limits:
            assert statuses == ["ok", "ok"]
            assert len(list(disk.glob("sweep/0[12]*/checkpoints/step-0000010"))) == 2
            _make_room(disk / "sweep")
            again = machine.start(f"sweep.resume={disk / 'sweep'}")
            output, _ = again.communicate(timeout=240)
            assert again.returncode == 0, output
            assert [one["status"] for one in results(disk / "sweep")] == ["ok"] * 3


def _make_room(sweep: Path) -> None:
    """Remove the weights of the first job, which the others do not need."""
    for path in sweep.glob("01_e88*/checkpoints/*/*"):
        path.unlink()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
