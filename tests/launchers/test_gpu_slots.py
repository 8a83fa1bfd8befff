"""When a GPU counts as free, by a pretended clock and driver; and which GPUs a sweep may use."""

from __future__ import annotations

import json
import multiprocessing
import stat
from pathlib import Path
from typing import Any

import pytest

from elman.base.errors import UserError
from elman.devices import locks
from elman.devices.locks import GpuLock
from elman.devices.nvml import DriverError, Gpu, GpuProcess, Sample
from elman.devices.visible import usable_gpus
from elman.launchers.gpus import slot
from elman.launchers.gpus.slot import GpuSlot
from elman.sections.launching import GpusLauncher

FREE = Sample(3)
FOREIGN = Sample(4200, 90, (GpuProcess(1, 4200),))
GPU = Gpu(0, "GPU-aa", "pretended")


class _Driver:
    def __init__(self) -> None:
        self.now: Sample | DriverError = FREE

    def gpus(self) -> list[Gpu]:
        return [GPU]

    def sample(self, uuid: str) -> Sample:
        if isinstance(self.now, DriverError):
            raise self.now
        return self.now


class Bench:
    """A slot, its clock and its driver."""

    def __init__(self) -> None:
        self.time, self.driver = 100.0, _Driver()
        self.slot = GpuSlot(GPU, self.driver, lambda: self.time)

    def after(self, seconds: float, steps: int = 1) -> bool:
        """Whether the slot is ready after so many steps of time."""
        ready = False
        for _ in range(steps):
            self.time += seconds
            ready = self.slot.ready()
        return ready


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a slot with locks of its own."""
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    return Bench()


def test_three_free_samples_a_second_apart(bench: Bench) -> None:
    assert not bench.after(1, 2)
    assert not bench.after(0.5)
    assert bench.after(0.5)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (FOREIGN, "used by pid 1"),
        (Sample(600), "600 MiB used by processes that cannot be seen from here"),
        (Sample(3, 40), "40 % busy"),
    ],
    ids=["a process", "memory alone", "utilisation alone"],
)
def test_a_busy_sample_begins_anew_and_says_who(bench: Bench, sample: Sample, words: str) -> None:
    bench.after(1, 2)
    bench.driver.now = sample
    assert not bench.after(1)
    assert words in bench.slot.waiting
    assert GpuLock("GPU-aa", "claim").take()
    bench.driver.now = FREE
    assert not bench.after(1, 4)


def test_after_our_own_job_one_sample_is_enough(bench: Bench) -> None:
    assert bench.after(1, 3)
    bench.slot.started(last=False)
    bench.slot.ended()
    bench.driver.now = Sample(4200, 95)
    assert not bench.after(0.1)
    bench.driver.now = Sample(3, 95)
    assert bench.after(0.1)


def test_memory_that_is_never_released_is_quarantined(bench: Bench) -> None:
    bench.after(1, 3)
    bench.slot.started(last=False)
    bench.slot.ended()
    bench.driver.now = Sample(4200)
    assert not bench.after(slot.RELEASE_SECONDS + 1, 2)
    assert "quarantined: 4,200 MiB" in bench.slot.broken
    bench.driver.now = FREE
    assert not bench.after(1, 10)


def test_somebody_who_came_in_between_is_waited_for(bench: Bench) -> None:
    bench.after(1, 3)
    bench.slot.started(last=False)
    bench.slot.ended()
    bench.driver.now = FOREIGN
    assert not bench.after(slot.RELEASE_SECONDS + 1, 3)
    assert not bench.slot.broken
    bench.driver.now = FREE
    assert bench.after(1, 3)


def test_a_driver_that_comes_back_is_forgiven_and_one_that_does_not_is_not(bench: Bench) -> None:
    bench.driver.now = DriverError("GPU is lost")
    assert not bench.after(1, 5)
    assert "GPU is lost" in bench.slot.waiting
    bench.driver.now = FREE
    assert bench.after(1, 3)
    bench.slot.started(last=True)
    bench.driver.now = DriverError("GPU is lost")
    assert not bench.after(slot.RELEASE_SECONDS + 1, 3)
    assert "quarantined" in bench.slot.broken


@pytest.mark.parametrize("kind", ["claim", "run"])
def test_a_gpu_that_another_elman_has_is_not_ours(bench: Bench, kind: Any) -> None:
    other = GpuLock("GPU-aa", kind)
    assert other.take("runs job 7")
    assert not bench.after(1, 5)
    assert "runs job 7" in bench.slot.waiting
    other.drop()
    assert bench.after(1, 3)


@pytest.mark.parametrize("how", ["the last job runs", "the last job has ended", "left"])
def test_the_claim_goes_with_the_last_job(bench: Bench, how: str) -> None:
    claim = GpuLock("GPU-aa", "claim")
    assert bench.after(1, 3)
    assert not claim.take()
    bench.slot.started(last=False)
    assert not claim.take()
    bench.slot.ended()
    assert bench.after(0.1)
    assert not claim.take()
    if how == "left":
        bench.slot.leave()
    else:
        bench.slot.started(last=True)
    if how == "the last job has ended":
        bench.slot.ended()
    assert claim.take()


def _hold(uuid: str, ready: Any) -> None:
    lock = GpuLock(uuid, "run")
    ready.send(lock.take())
    ready.recv()


def test_locks_are_everybodys_and_free_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    here, there = multiprocessing.Pipe()
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=("GPU-x", there))
    holder.start()
    assert here.recv()
    lock = GpuLock("GPU-x", "run")
    assert not lock.take()
    assert f"pid {holder.pid}" in lock.holder()
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    assert stat.S_IMODE(lock.path.parent.stat().st_mode) == 0o1777
    holder.kill()
    holder.join()
    assert lock.take()


def test_a_folder_for_locks_that_cannot_be_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "file" / "locks"))
    with pytest.raises(UserError, match=r"cannot lock a GPU there .* ELMAN_LOCKS=<folder>"):
        GpuLock("GPU-x", "run")


class _Four:
    def gpus(self) -> list[Gpu]:
        return [Gpu(n, f"GPU-{letter * 4}", "x") for n, letter in enumerate("abcd")]

    def sample(self, uuid: str) -> Sample:
        return FREE


def usable(monkeypatch: pytest.MonkeyPatch, visible: str | None, **settings: Any) -> list[int]:
    """Return the numbers of the GPUs that a launcher may use."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    launcher = GpusLauncher(name="gpus", **settings)
    return [gpu.index for gpu in usable_gpus(_Four(), launcher)[0]]


@pytest.mark.parametrize(
    ("visible", "settings", "expected"),
    [
        (None, {}, [0, 1, 2, 3]),
        ("2,0", {}, [2, 0]),
        ("GPU-dd,1", {}, [3, 1]),
        ("1,-1,2", {}, [1]),
        ("", {}, []),
        ("-1", {}, []),
        (None, {"gpus": [3, "GPU-bb"]}, [3, 1]),
        ("0,1,2", {"exclude": [1]}, [0, 2]),
        (None, {"gpus": [0, 1], "exclude": ["GPU-aaaa"]}, [1]),
        ("0", {"exclude": [3]}, [0]),
    ],
    ids=json.dumps,
)
def test_which_gpus_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    settings: dict[str, Any],
    expected: list[int],
) -> None:
    assert usable(monkeypatch, visible, **settings) == expected


@pytest.mark.parametrize(
    ("visible", "settings", "line"),
    [
        ("0,1", {"gpus": [2]}, r"launcher\.gpus: there is no GPU 2 to use; there are: 0 \(GPU-"),
        (None, {"exclude": [7]}, r"launcher\.exclude: there is no GPU 7"),
        ("0", {"exclude": [0]}, r"launcher\.exclude: leaves no GPU"),
        ("", {"gpus": [0]}, r"no GPU 0 to use; there are: CUDA_VISIBLE_DEVICES= allows none"),
        (
            "9",
            {},
            r"^CUDA_VISIBLE_DEVICES=9: there is no GPU 9; there are: 0 \(GPU-aaaa\), 1 .*CPU$",
        ),
        ("1,9,2", {}, r"there is no GPU 9; there are"),
        ("GPU-bbbc", {}, r"there is no GPU GPU-bbbc; there are"),
        ("0,GPU-aa", {}, r"names GPU 0 twice; there are"),
        ("0,,1", {}, r"there is no GPU without a name; there are"),
        (
            "MIG-5ab2",
            {},
            r"MIG-5ab2 is a part of a GPU \(MIG\); there are.*launcher=local runs one",
        ),
    ],
)
def test_a_gpu_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, settings: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError, match=line):
        usable(monkeypatch, visible, **settings)
