"""``elman -m`` over pretend GPUs when something dies, fills up or comes back; jobs are stubs."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.devices import locks, nvml
from elman.devices.locks import GpuLock
from elman.devices.nvml import DriverError, Nvml
from elman.launchers.display import Display
from elman.launchers.gpus import quarantine
from elman.launchers.gpus.executor import Executor
from elman.launchers.gpus.quarantine import Quarantine
from elman.launchers.gpus.queue import Queue
from elman.launchers.gpus.slot import CpuSlot, Slot
from elman.launchers.handle import JobHandle
from elman.launchers.interrupts import Interrupts
from elman.launchers.request import NoLog
from elman.runs import state as job_state
from tests.stubs.commands import Commands
from tests.waiting import eventually, gone

# Of the stub modes: train.steps of a job that waits for a signal to save, and ends well when it is
# started again in its folder; and of one that ignores signals.
WAITS, STUBBORN = 908, 907


class Machine(Commands):
    """A folder with four pretend GPUs and sweeps, each of which may use the first one."""

    before = ("-m", "elman", "-m")

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(folder, environment, [f"GPU-{letter}" for letter in "abcd"])
        self.environment["CUDA_VISIBLE_DEVICES"] = "0"

    def statuses(self) -> list[str]:
        """Return how the jobs ended, by sweep.json."""
        return [job["status"] for job in self.record()["jobs"]]

    def waiting_job(self) -> int:
        """Return the process of the job that waits, once one does."""
        eventually(lambda: bool(list(self.folder.rglob("waiting"))))
        return int(self.lines()[-1]["pid"])


@pytest.fixture
def machine(
    tmp_path: Path, stub_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    """Return a machine whose sweeps do not outlive the test."""
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    made = Machine(tmp_path, stub_environment)
    yield made
    made.end()


def gpu_is_free() -> bool:
    """Whether nobody holds the GPU."""
    held = [GpuLock("GPU-a", "claim"), GpuLock("GPU-a", "run")]
    free = all(lock.take() for lock in held)
    for lock in held:
        lock.drop()
    return free


@pytest.mark.parametrize(
    "killed", ["the job", "the launcher", pytest.param("both", marks=pytest.mark.slow)]
)
def test_after_a_kill_the_sweep_is_taken_up_where_it_was(machine: Machine, killed: str) -> None:
    total = 2 if killed == "both" else 3
    launcher = machine.start(f"train.steps=3,{WAITS}" + ",4" * (total - 2))
    job = machine.waiting_job()
    if killed != "the job":
        launcher.kill()
        launcher.wait()
    if killed != "the launcher":
        os.kill(job, signal.SIGKILL)
    output, _ = launcher.communicate(timeout=180)
    if killed == "the job":
        assert launcher.returncode == 1
        assert machine.statuses() == ["ok", "killed (SIGKILL)", "ok"]
        assert "[2/3] killed (SIGKILL) after " in output
    eventually(gpu_is_free)
    done = {path: path.stat().st_mtime_ns for path in machine.sweep.glob("*/result.json")}
    before = len(machine.lines())
    status, again = machine.run(f"sweep.resume={machine.sweep}")
    assert (status, machine.statuses()) == (0, ["ok"] * total), again
    well = 2 if killed == "the job" else 1
    assert f"{well} of {total} jobs are ok already" in again.splitlines()
    assert f"[2/{total}] train.steps={WAITS}" in again.splitlines()
    (result,) = machine.sweep.glob("02_*/result.json")
    assert json.loads(result.read_text())["resumed"]
    untouched = [path for path, time_ns in done.items() if path.stat().st_mtime_ns == time_ns]
    assert len(untouched) == well
    starts = [note for note in machine.lines()[before:] if note["what"] == "start"]
    assert len(starts) == total - well


def test_a_second_ctrl_c_kills_what_ignores_the_first(machine: Machine) -> None:
    launcher = machine.start(f"train.steps={STUBBORN},3")
    job = machine.waiting_job()
    launcher.send_signal(signal.SIGINT)
    assert launcher.stdout is not None
    while not launcher.stdout.readline().startswith("stopping: 1 running jobs save and end"):
        assert launcher.poll() is None
    assert Path(f"/proc/{job}").exists()
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=180)
    assert launcher.returncode == 130
    assert "killing 1 running jobs" in output
    assert machine.statuses() == ["killed (SIGKILL)", "not started"]
    assert gpu_is_free()


@pytest.mark.parametrize(
    ("visible", "settings", "used"),
    [
        ("3,GPU-b,0", ("launcher.exclude=[GPU-d]", "launcher.gpus=[1,3]"), "GPU-b"),
        ("", (), ""),
    ],
    ids=["one GPU is left", "an empty list is the CPU"],
)
def test_jobs_run_only_where_they_may(
    machine: Machine, visible: str, settings: tuple[str, ...], used: str
) -> None:
    status, output = machine.run("train.steps=3,4", *settings, CUDA_VISIBLE_DEVICES=visible)
    assert status == 0, output
    assert {note["CUDA_VISIBLE_DEVICES"] for note in machine.lines()} == {used}
    where = "on GPU 1 (pretended)" if used else "on the CPU (CUDA_VISIBLE_DEVICES= allows none)"
    assert where in output


@pytest.mark.parametrize("settings", ["launcher=local", "launcher.detach=true"])
def test_a_job_that_outlives_its_launcher_is_not_started_twice(
    machine: Machine,
    settings: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    launcher = machine.start(f"train.steps=3,{WAITS},4", settings, CUDA_VISIBLE_DEVICES="")
    job = machine.waiting_job()
    launcher.kill()
    launcher.wait()
    assert machine.statuses() == ["ok", "running", "not started"]
    monkeypatch.setattr(job_state, "ENDING_SECONDS", 0.2)
    for name, text in machine.environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    resume = f"sweep.resume={machine.sweep}"
    for expected in ("1 of 3 jobs are ok already", "2 of 3 jobs are ok already"):
        assert main(["-m", resume, settings]) == 1
        said = capfd.readouterr().out.splitlines()
        assert expected in said
        left = f"job 2 still runs (pid {job}) and is not started again; once it has ended, type "
        assert f"{left}elman -m {resume}" in said
        assert machine.statuses() == ["ok", "running", "ok"]
    os.kill(job, signal.SIGKILL)
    eventually(lambda: gone(job))
    assert main(["-m", resume, settings]) == 0
    assert machine.statuses() == ["ok"] * 3
    (result,) = machine.sweep.glob("02_*/result.json")
    assert json.loads(result.read_text())["resumed"]
    starts = [note for note in machine.lines() if note["what"] == "start"]
    assert len(starts) == 4


def test_what_began_before_an_interruption_is_not_said_to_be_not_started(machine: Machine) -> None:
    assert machine.run("train.steps=904,3", "launcher=local")[0] == 1
    (well,) = machine.sweep.glob("02_*/result.json")
    well.write_text('{"status": "timeout"}')
    assert machine.statuses() == ["nan", "ok"]
    (waits,) = machine.sweep.glob("01_*/config.yaml")
    waits.write_text(waits.read_text().replace("steps: 904", f"steps: {STUBBORN}"))
    again = machine.start(f"sweep.resume={machine.sweep}", "launcher=local")
    eventually(lambda: machine.statuses() == ["running", "timeout"])
    machine.waiting_job()
    for _ in range(3):
        again.send_signal(signal.SIGINT)
        time.sleep(0.2)
    output, _ = again.communicate(timeout=180)
    assert again.returncode == 130, output
    assert machine.statuses() == ["killed (SIGKILL)", "timeout"]


def test_the_local_launcher_counts_a_resumed_job_as_the_sweep_did(machine: Machine) -> None:
    assert machine.run("train.steps=3,902", "launcher=local")[0] == 1
    _, again = machine.run(f"sweep.resume={machine.sweep}", "launcher=local")
    assert [line for line in again.splitlines() if line.startswith("[")] == [
        "[2/2] train.steps=902"
    ]


class _FullDisk(Executor):
    """There is no room for the pickle of any job."""

    def submit(self, *arguments: Any, **named: Any) -> Any:
        """Fail as a write does."""
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_job_without_room_for_its_files_says_where(tmp_path: Path) -> None:
    job = JobHandle(1, "01", "model=e1", cast(Any, None))
    display = Display(1, Console(file=(tmp_path / "said").open("w"), width=200))
    with Interrupts() as interrupts:
        executor = _FullDisk(tmp_path, None, detach=False)
        Queue([job], [CpuSlot(1)], executor, display, NoLog(), 60, 60).run(interrupts)
    display.console.file.close()
    assert job.status == ExitStatus.FAILED
    line = f"[1/1] crash: cannot be started: {tmp_path}/.submitit/01: No space left on device\n"
    assert (tmp_path / "said").read_text() == line


def test_a_line_without_room_does_not_end_the_sweep() -> None:
    with open("/dev/full", "w", buffering=1) as full:
        Display(1, Console(file=full)).say("a line")
        with pytest.raises(OSError, match="No space left"):
            full.write("a line\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_lock_holds_without_room_for_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(locks.FOLDER, str(tmp_path))

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locks.os, "pwrite", full)
    first, second = GpuLock("GPU-a", "run"), GpuLock("GPU-a", "run")
    assert first.take("runs job 1")
    assert not second.take()
    assert second.holder() == "another elman"


class TestQuarantine:
    """By a pretended clock."""

    @pytest.fixture(autouse=True)
    def _ward(self) -> None:
        self.now = 0.0
        self.ward = Quarantine(lambda: self.now)
        self.sick, self.well = (
            cast(Slot, SimpleNamespace(name=name, gpus=lambda name=name: [name], waiting=""))
            for name in ("GPU 0", "GPU 1")
        )
        self.ward.started(self.sick)

    def fail(self, slot: Slot, times: int, status: int = 1, seconds: float = 3) -> None:
        """End so many jobs one after another."""
        for _ in range(times):
            self.ward.started(slot)
            self.ward.ended(slot, status, seconds)

    def test_a_gpu_that_fails_one_after_another_rests_longer_each_time(self) -> None:
        self.ward.started(self.well)
        self.fail(self.sick, 2)
        assert not self.ward.resting(self.sick)
        self.fail(self.sick, 1, status=-signal.SIGKILL)
        assert self.ward.resting(self.sick)
        words = "quarantined for 60 s: 3 jobs in a row failed there at once"
        assert self.sick.waiting == words
        self.now += quarantine.REST_SECONDS
        assert not self.ward.resting(self.sick)
        self.fail(self.sick, 1)
        self.now += 1.5 * quarantine.REST_SECONDS
        assert self.ward.resting(self.sick)
        assert not self.ward.resting(self.well)

    @pytest.mark.parametrize(
        ("status", "seconds"),
        [(0, 3), (1, 61), (int(ExitStatus.USER_ERROR), 3), (int(ExitStatus.NON_FINITE), 3)],
        ids=["well", "late", "refused", "nan"],
    )
    def test_other_ends_are_not_the_gpus_fault(self, status: int, seconds: float) -> None:
        self.ward.started(self.well)
        self.fail(self.sick, 2)
        self.fail(self.sick, 1, status, seconds)
        self.fail(self.sick, 2)
        assert not self.ward.resting(self.sick)

    def test_jobs_that_fail_everywhere_quarantine_nothing(self) -> None:
        for _ in range(5):
            self.fail(self.sick, 1)
            self.fail(self.well, 1)
        assert not self.ward.resting(self.sick)
        assert not self.ward.resting(self.well)

    def test_the_only_gpu_is_not_quarantined(self) -> None:
        self.fail(self.sick, 9)
        assert not self.ward.resting(self.sick)


def test_a_driver_that_was_reloaded_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library started with a driver that went answers no more, until it is started again."""
    library = cast(Any, ModuleType("pynvml"))
    calls: list[str] = []

    class NVMLError(Exception):
        pass

    def count() -> int:
        if calls[-1] != "init":
            raise NVMLError("GPU is lost")
        return 0

    library.NVMLError, library.nvmlDeviceGetCount = NVMLError, count
    library.nvmlInit = lambda: calls.append("init")
    library.nvmlShutdown = lambda: calls.append("shutdown")
    monkeypatch.setitem(sys.modules, "pynvml", library)
    nvml._started.cache_clear()
    assert Nvml().gpus() == []
    calls.append("the driver is unloaded")
    with pytest.raises(DriverError, match="GPU is lost"):
        Nvml().gpus()
    assert Nvml().gpus() == []
    assert calls == ["init", "the driver is unloaded", "shutdown", "init"]
    nvml._started.cache_clear()
