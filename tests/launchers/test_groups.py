"""Groups of GPUs by a pretended clock and driver: claims of all of them or of none."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.devices import locks
from elman.devices.locks import GpuLock, take_run_locks
from elman.devices.nvml import DriverError, Gpu, GpuProcess, Sample
from elman.launchers.gpus import slot
from elman.launchers.gpus.group import GroupSlot, Pool
from elman.launchers.gpus.quarantine import FAILURES, Quarantine
from elman.launchers.gpus.slot import GpuSlot

FREE = Sample(3)
FOREIGN = Sample(4200, 90, (GpuProcess(1, 4200),))


class Machine:
    """Four GPUs of which launchers make groups."""

    def __init__(self) -> None:
        self.time = 100.0
        self.now: dict[str, Sample | DriverError] = {f"GPU-{n}": FREE for n in range(4)}

    def gpus(self) -> list[Gpu]:
        """See ``Driver``."""
        return [Gpu(n, uuid, "pretended") for n, uuid in enumerate(self.now)]

    def sample(self, uuid: str) -> Sample:
        """See ``Driver``; every look takes a moment."""
        self.time += 0.01
        found = self.now[uuid]
        if isinstance(found, DriverError):
            raise found
        return found

    def groups(self, size: int, number: int = 4) -> list[GroupSlot]:
        """Return the places of a launcher that may use so many of the GPUs."""
        slots = [GpuSlot(gpu, self, lambda: self.time) for gpu in self.gpus()[:number]]
        return Pool(slots, size, lambda: self.time).slots()

    def wait_for(self, group: GroupSlot, seconds: float = 10) -> bool:
        """Whether a group gets ready in time."""
        until = self.time + seconds
        while self.time < until:
            if group.ready():
                return True
            self.time += 0.05
        return False


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with locks of its own."""
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    return Machine()


def free_claims() -> list[int]:
    """Return the GPUs whose claim nobody holds."""
    found = []
    for number in range(4):
        lock = GpuLock(f"GPU-{number}", "claim")
        if lock.take():
            found.append(number)
            lock.drop()
    return found


def test_as_many_groups_as_fit_take_the_gpus_in_order(machine: Machine) -> None:
    first, second = machine.groups(2)
    assert machine.wait_for(first)
    assert machine.wait_for(second)
    assert (first.name, second.name) == ("GPUs 0,1", "GPUs 2,3")
    assert first.environment()["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert len(machine.groups(3)) == 1
    assert machine.groups(5) == []


def test_a_group_is_made_of_whatever_is_free(machine: Machine) -> None:
    machine.now["GPU-1"] = FOREIGN
    group = machine.groups(2)[0]
    assert machine.wait_for(group)
    assert group.name == "GPUs 0,2"
    assert free_claims() == [1, 3]


def test_too_few_free_gpus_leave_no_claim_behind(machine: Machine) -> None:
    machine.now["GPU-1"] = machine.now["GPU-3"] = FOREIGN
    group = machine.groups(3)[0]
    assert not machine.wait_for(group)
    assert free_claims() == [0, 1, 2, 3]
    assert group.waiting.startswith("2 of 3 GPUs are free; GPU 1: used by pid 1")
    machine.now["GPU-1"] = FREE
    assert machine.wait_for(group)


def test_two_launchers_that_look_in_turn_never_wait_for_each_other(machine: Machine) -> None:
    one, other = machine.groups(3)[0], machine.groups(3)[0]
    until = machine.time + 10
    ready = []
    while machine.time < until and not ready:
        ready = [group for group in (one, other) if group.ready()]
        machine.time += 0.05
    assert ready == [one]
    assert not other.gpus()
    one.started(last=True)
    one.leave()
    assert machine.wait_for(other)


def test_a_gpu_that_somebody_takes_meanwhile_lets_the_others_go(machine: Machine) -> None:
    group = machine.groups(3)[0]
    group.ready()
    assert free_claims() == [3]
    machine.now["GPU-1"] = FOREIGN
    assert machine.wait_for(group)
    assert group.name == "GPUs 0,2,3"
    assert free_claims() == [1]


def test_a_group_keeps_its_gpus_between_jobs_until_one_is_given_up(machine: Machine) -> None:
    group = machine.groups(2, number=3)[0]
    assert machine.wait_for(group)
    group.started(last=False)
    machine.now["GPU-1"] = Sample(9000)
    group.ended()
    assert not machine.wait_for(group, 1)
    assert group.waiting == "GPU 1: memory is being released: 9,000 MiB used by processes that " + (
        "cannot be seen from here"
    )
    assert machine.wait_for(group, slot.RELEASE_SECONDS + 10)
    assert group.name == "GPUs 0,2"
    group.started(last=True)
    assert free_claims() == [0, 1, 2, 3]


def test_without_enough_gpus_left_a_place_is_given_up(machine: Machine) -> None:
    first, second = machine.groups(2)
    machine.now["GPU-3"] = DriverError("GPU is lost")
    assert machine.wait_for(first)
    assert not machine.wait_for(second, 10 * slot.RELEASE_SECONDS)
    assert second.broken == "too few GPUs are left for a group of 2"
    assert not first.broken


def test_a_run_lock_that_is_taken_gives_the_others_back(machine: Machine) -> None:
    held = GpuLock("GPU-2", "run")
    assert held.take("runs something")
    assert take_run_locks(["GPU-3", "GPU-2", "GPU-1"], "runs a job") is None
    assert GpuLock("GPU-1", "run").take()
    assert GpuLock("GPU-3", "run").take()


def test_every_gpu_of_a_group_rests_when_jobs_fail_on_it(machine: Machine) -> None:
    sick, well = machine.groups(2)
    ward = Quarantine(lambda: machine.time)
    for group in (sick, well):
        assert machine.wait_for(group)
        ward.started(group)
    for _ in range(FAILURES):
        ward.ended(sick, 1, seconds=3)
    assert ward.resting(sick)
    assert not ward.resting(well)
    sick.leave()
    alone = GpuSlot(Gpu(1, "GPU-1", "pretended"), machine, lambda: machine.time)
    assert ward.resting(alone)
