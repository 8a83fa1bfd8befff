"""The flag ``contended``: who counts as somebody else on the GPU, or the CPUs, of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elman.base.cpus import usable_cpus
from elman.devices import sharing
from elman.devices.nvml import DriverError, Gpu, GpuProcess, Sample
from elman.training import contention
from elman.training.contention import ContentionWatch, foreign
from elman.training.cpu_share import CpuShare, Reading, busy_seconds, reading
from elman.training.listeners import totals

# No process has it: the kernel's largest number is 2 ** 22.
OUTSIDE = 2**30


def processes(*pids: int) -> tuple[GpuProcess, ...]:
    """Return what the driver lists."""
    return tuple(GpuProcess(pid, 100) for pid in pids)


@pytest.mark.parametrize(
    ("pids", "contended"),
    [
        ((), False),
        ((os.getpid(),), False),
        ((os.getpid(), os.getppid()), True),
        ((os.getppid(),), True),
        ((OUTSIDE,), False),
        ((OUTSIDE, OUTSIDE + 1), True),
        ((os.getpid(), OUTSIDE), True),
    ],
    ids=["none", "own", "own and other", "other", "own seen from outside", "two outside", "both"],
)
def test_who_is_somebody_else(pids: tuple[int, ...], contended: bool) -> None:
    assert foreign(processes(*pids)) is contended


def test_the_ranks_of_the_run_are_not_somebody_else() -> None:
    """Here the parent, which is no child of this process, plays the other rank."""
    other = os.getppid()
    listed = processes(os.getpid(), other)
    assert foreign(listed)
    assert not foreign(listed, (os.getpid(), other))
    assert not foreign(processes(other), (os.getpid(), other))
    assert foreign(processes(os.getpid(), other, OUTSIDE), (os.getpid(), other))
    assert foreign(listed, (os.getpid(), OUTSIDE)), "a rank that has ended is no rank"


def test_a_child_is_not_somebody_else() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not foreign(processes(os.getpid(), child.pid))
        child.communicate(b"\n")


class _Driver:
    def __init__(self) -> None:
        self.listed: tuple[GpuProcess, ...] | None = processes(os.getpid())

    def gpus(self) -> list[Gpu]:
        return []

    def sample(self, uuid: str) -> Sample:
        assert uuid == "GPU-aa"
        if self.listed is None:
            raise DriverError("gone")
        return Sample(100, 50, self.listed)


def test_once_contended_stays_contended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_uuid", lambda device: "GPU-aa")
    monkeypatch.setattr(contention, "SAMPLE_SECONDS", 0.0)
    driver = _Driver()
    watch = ContentionWatch(torch.device("cuda"), asked=driver)
    assert watch.contended is None
    seen = []
    for listed in (processes(os.getpid()), processes(os.getpid(), OUTSIDE), None, ()):
        driver.listed = listed
        watch.sample()
        seen.append(watch.contended)
    assert seen == [False, True, True, True]


def test_jobs_that_share_a_gpu_by_request_are_no_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contention, "_uuid", lambda device: "GPU-aa")
    monkeypatch.setenv(sharing.VARIABLE, "2")
    driver = _Driver()
    driver.listed = processes(os.getpid(), OUTSIDE)
    watch = ContentionWatch(torch.device("cuda"), asked=driver)
    watch.sample()
    assert watch.contended is None


STAT = """cpu  900 0 0 9000 0 0 0 0 0 0
cpu0 100 20 30 7000 50 1 2 300 40 0
cpu1 200 0 0 8000 0 0 0 0 0 0
cpu10 5000 0 0 8000 0 0 0 0 0 0
intr 5
"""


def test_the_busy_time_of_cpus_has_all_but_idling_and_no_guests_twice() -> None:
    each = os.sysconf("SC_CLK_TCK")
    assert busy_seconds(STAT, {0}) == (100 + 20 + 30 + 1 + 2 + 300) / each
    assert busy_seconds(STAT, {0, 1}) == (453 + 200) / each
    assert busy_seconds(STAT, {7}) is None


@pytest.mark.parametrize(
    ("cpus", "threads", "busy", "own", "lost"),
    [
        (2, 2, 20.0, 20.0, 0.0),
        (2, 2, 20.0, 15.0, 0.25),
        (2, 2, 20.0, 10.0, 0.5),
        (2, 1, 20.0, 10.0, 0.0),
        (2, 1, 20.0, 5.0, 0.5),
        (64, 8, 500.0, 80.0, 0.0),
        (64, 8, 640.0, 40.0, 0.5),
        (2, 16, 20.0, 18.0, 0.1),
        (2, 2, 19.0, 20.0, 0.0),
    ],
)
def test_what_others_take_counts_once_no_cpu_is_left_for_a_thread(
    cpus: int, threads: int, busy: float, own: float, lost: float
) -> None:
    """Ten seconds of training."""
    readings = iter([Reading(100.0, 7.0, 3.0), Reading(110.0, 7.0 + busy, 3.0 + own)])
    assert CpuShare(cpus, threads, lambda: next(readings)).lost() == pytest.approx(lost)


def test_what_others_take_is_unknown_without_readings_and_in_the_first_seconds() -> None:
    assert CpuShare(2, 2, lambda: None).lost() is None
    readings = iter([Reading(0.0, 0.0, 0.0), Reading(1.0, 2.0, 0.0)])
    assert CpuShare(2, 2, lambda: next(readings)).lost() is None


def test_a_childs_time_is_not_that_of_others() -> None:
    """Here the child that computes has ended, and so has its own child."""
    code = "import time; t = time.process_time\nwhile t() < 0.3: pass"
    before = reading(usable_cpus(), ())
    subprocess.run([sys.executable, "-c", code], check=True)
    after = reading(usable_cpus(), ())
    assert before is not None
    assert after is not None
    assert after.own - before.own >= 0.25
    assert after.busy - before.busy >= 0.2


@pytest.mark.parametrize(("own", "contended"), [(20.0, False), (19.0, False), (15.0, True)])
def test_a_run_on_a_cpu_says_whether_other_work_went_on_beside_it(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, own: float, contended: bool
) -> None:
    """By readings ten seconds apart, in which two CPUs are busy; a resumed run remembers it."""

    def read_by(own: float) -> None:
        ten = iter(range(10**6))
        monkeypatch.setattr(
            contention,
            "reading",
            lambda cpus, ranks: Reading(10.0 * (at := next(ten)), 20.0 * at, own * at),
        )

    monkeypatch.setattr(contention, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(contention, "usable_cpus", lambda: {0, 1})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    read_by(own)
    first = train("train.steps=2")
    assert first.result["contended"] is contended
    read_by(20.0)
    resumed = train("train.steps=4", f"train.resume={first.folder}")
    assert resumed.result["contended"] is contended


def test_a_gpu_that_others_use_during_a_run_is_in_its_result(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watch(ContentionWatch):
        """Watches a GPU from the CPU: others are there from the second look on."""

        def __init__(self, device: torch.device, ranks: tuple[int, ...]) -> None:
            listed = _Driver()
            super().__init__(device, ranks, listed)
            self._uuid, self._listed, self._looks = "GPU-aa", listed, 0

        def begin(self) -> None:
            """Do not look at the CPUs."""

        def sample(self) -> None:
            self._looks += 1
            if self._looks > 1:
                self._listed.listed = processes(os.getpid(), os.getppid())
            super().sample()

    monkeypatch.setattr(contention, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(totals, "ContentionWatch", Watch)
    assert train("train.steps=2", folder="alone").result["contended"] is False
    assert train(folder="shared").result["contended"] is True


def test_a_result_says_how_many_jobs_shared_the_gpu_also_after_a_session_alone(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "jobs_on", lambda device: 4)
    shared = train("train.steps=2", folder="shared")
    monkeypatch.setattr(totals, "jobs_on", lambda device: 1)
    again = train("train.steps=3", f"train.resume={shared.folder}", folder="shared")
    assert (shared.result["jobs_per_gpu"], again.result["jobs_per_gpu"]) == (4, 4)
    assert train("train.steps=1", folder="alone").result["jobs_per_gpu"] == 1
