"""The queue over pretend GPUs, with real processes: no meeting, and every way of dying."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from elman.devices.locks import GpuLock
from tests.launchers.machine import Machine, ends, gaps
from tests.waiting import eventually, gone


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
