"""The phases of a job follow each other: their sum is the time since it began."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elman.base import phases as module
from elman.base.phases import Phases


def test_phases_follow_each_other_and_a_name_may_come_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 10.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    phases = Phases.of_this_job()
    for name, seconds in (("build", 2.0), ("check", 3.0), ("build", 4.0)):
        now += seconds
        phases.end(name)
    now += 5.0
    assert phases.seconds == {"build": 6.0, "check": 3.0}
    assert phases.since() == 5.0


def test_only_the_first_job_of_a_process_began_with_it() -> None:
    code = (
        "import time; time.sleep(0.3)\n"
        "from elman.base.phases import Phases, count_from_start_of_process\n"
        "count_from_start_of_process()\n"
        "print(Phases.of_this_job().since(), Phases.of_this_job().since())"
    )
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    whole = time.monotonic() - began
    own, next_one = map(float, said.stdout.split())
    assert 0.3 <= own <= whole + 0.02  # the system counts in hundredths
    assert next_one < 0.3


def test_the_times_of_a_run_add_up_to_its_wall_time(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"def add(left, right):\n    return left + right\n" * 99)
    command = [
        *(sys.executable, "-m", "elman", "model=e1", "model.dim=128", "model.depth=1"),
        *("train.batch_size=2", "train.chunk_size=16", "data.val_sample=64", "data.val_window=16"),
        *("train.steps=3", "data.path=text.txt", "hydra.run.dir=run"),
    ]
    began = time.time()
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    result = tmp_path / "run" / "result.json"
    wall = result.stat().st_mtime - began
    seconds = json.loads(result.read_text())["seconds"]
    names = ("start", "imports", "wait", "build", "check", "first_step")
    assert list(seconds) == [*names, "train", "validation", "checkpoint", "end"]
    assert all(value >= 0 for value in seconds.values())
    # Before the process exists and after its last look at the clock passes a moment.
    assert 0.9 * wall < sum(seconds.values()) < wall + 0.05
