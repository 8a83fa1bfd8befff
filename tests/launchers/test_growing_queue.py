"""The queue over pretend GPUs, with jobs that come into being while others run."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from elman.devices.locks import GpuLock
from tests.launchers.machine import Machine, ends, gaps
from tests.waiting import eventually, gone

BUSY = {"used_mib": 4200, "processes": [{"pid": os.getpid(), "mib": 4200}]}


def asks(machine: Machine) -> list[dict[str, Any]]:
    """Return every question for more jobs."""
    return [note for note in machine.notes() if note["what"] == "ask"]


@pytest.mark.parametrize(
    ("gpus", "places", "how"),
    [(2, 2, {}), (2, 1, {"each": 2}), (1, 2, {"share": 2})],
    ids=["one GPU each", "two GPUs each", "two jobs on a GPU"],
)
def test_jobs_are_asked_for_as_places_get_free(
    machine: Machine, gpus: int, places: int, how: dict[str, int]
) -> None:
    machine.pretend(*[{}] * gpus)
    assert ends(machine.launch("", seconds=0.3, STUB_LATER="wwwwww", **how)) == [0] * 6
    assert sum(map(len, machine.intervals().values())) == 6 * how.get("each", 1)
    if "share" not in how:
        assert min(gaps(machine)) > 0
    notes = asks(machine)
    # For each place a job, or a process that waits for it.
    assert max(note["waiting"] + note["came"] for note in notes) == places
    assert [note["came"] for note in notes][-1] == 0
    # The process of the next job starts before a place gets free for it.
    came = [note["time"] for note in notes for _ in range(note["came"])]
    assert came[places] < machine.wait_for("end")[0]["time"]


def test_jobs_before_and_after_end_in_every_way(machine: Machine) -> None:
    machine.pretend({})
    assert ends(machine.launch("wk", STUB_LATER="kf|w")) == [0, -9, -9, 1, 0]


def test_no_job_is_asked_for_on_behalf_of_a_gpu_that_others_use(machine: Machine) -> None:
    machine.pretend({}, BUSY)
    launcher = machine.launch("", seconds=3, STUB_LATER="wwww")
    machine.wait_for("end")
    before = machine.wait_for("end")[0]["time"]
    assert sum(note["came"] for note in asks(machine) if note["time"] < before) == 2
    assert ends(launcher) == [0] * 4


def test_a_gpu_without_a_job_now_is_free_for_others_and_taken_again_later(
    machine: Machine,
) -> None:
    machine.pretend({}, {})
    launcher = machine.launch("", seconds=2, STUB_LATER="ws|ww")
    (stubborn,) = machine.wait_for("stubborn")
    (note,) = machine.wait_for("end")
    eventually(lambda: gone(note["pid"]))
    others = [GpuLock(note["gpu"], kind) for kind in ("claim", "run")]
    for lock in others:
        eventually(lock.take)
        lock.drop()
    asked = len(asks(machine))
    time.sleep(0.5)
    assert len(asks(machine)) == asked  # nothing has ended since
    os.kill(stubborn["pid"], signal.SIGKILL)
    assert ends(launcher) == [0, -signal.SIGKILL, 0, 0]
    assert {note["gpu"] for note in machine.wait_for("end", 3)[1:]} == {"GPU-0", "GPU-1"}


def test_two_launchers_that_grow_never_meet(machine: Machine) -> None:
    machine.pretend({}, {})
    started = [machine.launch("", first, STUB_LATER="ww|ww") for first in (1, 101)]
    assert [ends(launcher) for launcher in started] == [[0] * 4] * 2
    assert sum(map(len, machine.intervals().values())) == 8
    assert min(gaps(machine)) > 0


def test_a_gpu_on_which_every_job_fails_does_not_eat_the_questions(machine: Machine) -> None:
    machine.pretend({}, {})
    launcher = machine.launch("", seconds=1.5, STUB_LATER="xxxxxxx")
    output, errors = launcher.communicate(timeout=120)
    assert sorted(json.loads(output)) == [0] * 4 + [1] * 3
    assert "GPU 0: quarantined for 60 s: 3 jobs in a row failed there at once" in errors


def test_waiting_for_a_gpu_ends_with_one_job_asked_for(machine: Machine) -> None:
    machine.pretend(BUSY)
    launcher = machine.launch("", wait=1.5, STUB_LATER="ww")
    output, errors = launcher.communicate(timeout=180)
    assert json.loads(output) == [None]
    assert "no place was free" in errors


def test_after_a_signal_no_job_is_asked_for(machine: Machine) -> None:
    machine.pretend({})
    launcher = machine.launch("", save=0.5, STUB_LATER="sww")
    machine.wait_for("stubborn")
    eventually(lambda: sum(note["came"] for note in asks(machine)) == 2)
    launcher.send_signal(signal.SIGTERM)
    assert ends(launcher) == [-signal.SIGKILL, None]


def test_a_killed_launcher_takes_the_jobs_along_that_it_asked_for(machine: Machine) -> None:
    machine.pretend({})
    launcher = machine.launch("", seconds=600, STUB_LATER="ww")
    (job,) = machine.wait_for("start")
    launcher.kill()
    eventually(lambda: gone(job["pid"]))
    assert GpuLock("GPU-0", "claim").take()
    assert GpuLock("GPU-0", "run").take()
