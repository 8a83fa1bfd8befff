"""The flag ``contended``: who counts as somebody else on the GPU of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elman.devices import sharing
from elman.devices.nvml import DriverError, Gpu, GpuProcess, Sample
from elman.training import contention, ledger
from elman.training.contention import ContentionWatch, foreign

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


def test_on_a_cpu_nobody_looks() -> None:
    watch = ContentionWatch(torch.device("cpu"), asked=_Driver())
    watch.sample()
    assert watch.contended is None


def test_a_gpu_that_others_use_during_a_run_is_in_its_result(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watch(ContentionWatch):
        """Watches a GPU from the CPU: others are there from the second look on."""

        def __init__(self, device: torch.device, ranks: tuple[int, ...]) -> None:
            listed = _Driver()
            super().__init__(device, ranks, listed)
            self._uuid, self._listed, self._looks = "GPU-aa", listed, 0

        def sample(self) -> None:
            self._looks += 1
            if self._looks > 1:
                self._listed.listed = processes(os.getpid(), os.getppid())
            super().sample()

    monkeypatch.setattr(contention, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(ledger, "ContentionWatch", Watch)
    assert train("train.steps=2", folder="alone").result["contended"] is False
    assert train(folder="shared").result["contended"] is True


def test_a_result_says_how_many_jobs_shared_the_gpu_also_after_a_session_alone(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "jobs_on", lambda device: 4)
    shared = train("train.steps=2", folder="shared")
    monkeypatch.setattr(ledger, "jobs_on", lambda device: 1)
    again = train("train.steps=3", f"train.resume={shared.folder}", folder="shared")
    assert (shared.result["jobs_per_gpu"], again.result["jobs_per_gpu"]) == (4, 4)
    assert train("train.steps=1", folder="alone").result["jobs_per_gpu"] == 1
