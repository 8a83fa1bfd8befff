"""Several jobs of a sweep on one GPU: who may meet there, and the MPS daemon of each such GPU."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from elman.devices import locks
from elman.devices.locks import GpuLock, take_run_locks
from elman.devices.nvml import Gpu, GpuProcess, Sample
from elman.launchers.gpus.mps import CONTROL
from elman.launchers.gpus.shared import SharedSlot, shared_slots
from elman.launchers.gpus.slot import GpuSlot
from elman.sections.launching import GpusLauncher
from tests.launchers.machine import Machine, ends
from tests.waiting import eventually, gone

FREE = Sample(3)
FOREIGN = Sample(4200, 90, (GpuProcess(1, 4200),))
# As a daemon it notes itself and sleeps; otherwise it carries out an order.
FAKE = """\
#!/bin/sh
here=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
    if [ -n "$FAKE_REFUSES" ]; then echo "$FAKE_REFUSES"; exit 1; fi
    echo $$ > "$here/pid"
    echo "$CUDA_VISIBLE_DEVICES $$ $here" >> "$FAKE_NOTES"
    exec sleep 600
fi
read -r order
[ -e "$here/pid" ] || exit 1
case "$order" in
    get_server_list) echo 4711 ;;
    quit*) echo "$order" >> "$FAKE_NOTES.orders"; kill "$(cat "$here/pid")" ;;
esac
"""


class _Driver:
    def __init__(self) -> None:
        self.now = FREE

    def gpus(self) -> list[Gpu]:
        return []

    def sample(self, uuid: str) -> Sample:
        return self.now


class Bench:
    """The places of a GPU for two jobs, its clock and its driver."""

    def __init__(self) -> None:
        self.time, self.driver = 100.0, _Driver()
        self.said: list[str] = []
        slot = GpuSlot(Gpu(0, "GPU-aa", "pretended"), self.driver, lambda: self.time)
        settings = GpusLauncher(name="gpus", jobs_per_gpu=2, detach=True)
        self.first, self.second = shared_slots([slot], settings, self.said.append)

    def lends(self, place: SharedSlot, seconds: float = 1, steps: int = 1) -> bool:
        """Whether a place may be used after so many steps of time."""
        lent = False
        for _ in range(steps):
            self.time += seconds
            lent = place.ready()
        return lent


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return places with locks of their own."""
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    return Bench()


def test_a_gpu_is_found_free_once_and_then_lent_without_another_look(bench: Bench) -> None:
    assert not bench.lends(bench.first, steps=2)
    assert bench.lends(bench.first)
    bench.driver.now = FOREIGN  # as our own job looks to the driver
    assert bench.lends(bench.second, seconds=0)
    bench.first.ended()
    assert bench.lends(bench.first, seconds=0)
    assert bench.first.environment()["ELMAN_JOBS_PER_GPU"] == "2"


def test_a_foreign_process_blocks_every_place_and_is_named(bench: Bench) -> None:
    bench.driver.now = FOREIGN
    assert not bench.lends(bench.first, steps=5)
    assert not bench.lends(bench.second, steps=5)
    assert "used by pid 1" in bench.second.waiting
    assert GpuLock("GPU-aa", "claim").take()


def test_after_the_last_job_the_memory_is_waited_for(bench: Bench) -> None:
    bench.lends(bench.first, steps=3)
    bench.lends(bench.second)
    bench.first.ended()
    bench.second.ended()
    bench.driver.now = Sample(4200, 95)
    assert not bench.lends(bench.first, seconds=0.1)
    assert "memory is being released" in bench.first.waiting
    bench.driver.now = FREE
    assert bench.lends(bench.first, seconds=0.2)


def test_one_claim_is_held_until_the_last_place_is_given_back(bench: Bench) -> None:
    claim = GpuLock("GPU-aa", "claim")
    bench.lends(bench.first, steps=3)
    bench.lends(bench.second)
    bench.first.started(last=True)
    for place in (bench.first, bench.second):
        assert not claim.take()
        place.ended()
        place.leave()
    assert claim.take()


def test_jobs_share_a_run_lock_with_each_other_and_with_nobody_else(bench: Bench) -> None:
    first = take_run_locks(["GPU-aa"], "runs job 1", shared=True)
    second = take_run_locks(["GPU-aa"], "runs job 2", shared=True)
    assert first
    assert second
    alone = GpuLock("GPU-aa", "run")
    first[0].drop()
    assert not alone.take()
    second[0].drop()
    assert alone.take()
    assert take_run_locks(["GPU-aa"], "runs job 3", shared=True) is None


def most_at_a_time(machine: Machine) -> int:
    """Return how many jobs ran on the busiest GPU at a time."""
    most = 0
    for pairs in machine.intervals().values():
        for begun, _ in pairs:
            most = max(most, sum(start <= begun < end for start, end in pairs))
    return most


@pytest.fixture
def fake(machine: Machine) -> dict[str, str]:
    """Return variables of a launcher that finds a stand-in for NVIDIA's control program."""
    program = machine.folder / "bin" / CONTROL
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {"PATH": path, "FAKE_NOTES": str(machine.folder / "daemons")}


def daemons(machine: Machine) -> list[tuple[str, int, Path]]:
    """Return GPU, process and folder of every daemon that was started."""
    lines = (machine.folder / "daemons").read_text().splitlines()
    words = [line.split() for line in lines]
    return [(gpu, int(pid), Path(folder)) for gpu, pid, folder in words]


def all_ended(machine: Machine) -> bool:
    """Whether no daemon and no folder of one is left."""
    return all(gone(pid) and not folder.exists() for _, pid, folder in daemons(machine))


def test_two_jobs_share_a_gpu_with_its_own_daemon_and_a_third_waits(
    machine: Machine, fake: dict[str, str]
) -> None:
    machine.pretend({}, {"used_mib": 9000})
    launcher = machine.launch("wwwkw", seconds=0.5, share=2, **fake)
    output, errors = launcher.communicate(timeout=180)
    assert json.loads(output) == [0, 0, 0, -signal.SIGKILL, 0]
    assert most_at_a_time(machine) <= 2
    assert errors.count("GPU 0 is shared by jobs: their kernels overlap (MPS)") == 1
    # Another daemon is started if both jobs end at once.
    assert {gpu for gpu, _, _ in daemons(machine)} == {"GPU-0"}
    folders = {str(folder) for _, _, folder in daemons(machine)}
    assert max(map(len, folders)) + len("/control_privileged") < 108
    assert {note["CUDA_MPS_PIPE_DIRECTORY"] for note in machine.notes()} == folders
    assert {note["ELMAN_JOBS_PER_GPU"] for note in machine.notes()} == {"2"}
    assert all_ended(machine)
    orders = (machine.folder / "daemons.orders").read_text().splitlines()
    assert orders == ["quit -t 60"] * len(daemons(machine))


def test_sweeps_that_share_gpus_do_not_share_them_with_each_other(machine: Machine) -> None:
    machine.pretend({})
    started = [machine.launch("ww", first, seconds=0.5, share=2) for first in (1, 101)]
    assert [ends(launcher) for launcher in started] == [[0, 0]] * 2
    assert most_at_a_time(machine) <= 2
    (pairs,) = machine.intervals().values()
    assert max(end for _, end in pairs[:2]) < min(start for start, _ in pairs[2:])


@pytest.mark.parametrize("how", ["Ctrl-C", "killed"])
def test_no_daemon_outlives_its_launcher(machine: Machine, fake: dict[str, str], how: str) -> None:
    machine.pretend({})
    launcher = machine.launch("www", seconds=600, save=1, share=2, **fake)
    jobs = machine.wait_for("start", 2)
    if how == "killed":
        launcher.kill()
    else:
        launcher.send_signal(signal.SIGINT)
        assert ends(launcher)[2] is None
        assert all_ended(machine)
    eventually(lambda: all(gone(job["pid"]) for job in jobs))
    eventually(lambda: all_ended(machine))
    assert GpuLock("GPU-0", "claim").take()
    assert GpuLock("GPU-0", "run").take()


def test_without_mps_jobs_take_turns_and_a_line_says_so(
    machine: Machine, fake: dict[str, str]
) -> None:
    machine.pretend({})
    launcher = machine.launch("ww", share=2, FAKE_REFUSES="no such luck", **fake)
    output, errors = launcher.communicate(timeout=180)
    assert json.loads(output) == [0, 0]
    why = "its daemon ended with status 1: no such luck"
    assert f"GPU 0 is shared by jobs: they take turns, without MPS: {why}" in errors
    assert {note["CUDA_MPS_PIPE_DIRECTORY"] for note in machine.notes()} == {None}


def test_a_launcher_whose_jobs_may_outlive_it_starts_no_daemon(bench: Bench) -> None:
    bench.lends(bench.first, steps=3)
    assert bench.said == [
        "GPU 0 is shared by jobs: they take turns, without MPS: launcher.detach=true lets jobs "
        "outlive its daemon"
    ]
