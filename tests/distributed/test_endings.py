"""Whatever ends one rank ends all of them: one status, one result, one checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import elman
from tests.distributed.conftest import TINY, RankRun
from tests.waiting import eventually, gone

SLOW = ("train.steps=10000", "train.val_every=null", "train.save_minutes=null", "log.every=1")


def steps_of(run: Any, least: int) -> None:
    """Wait until a run has recorded so many steps."""
    until = time.monotonic() + 180
    while len(run.records("step")) < least:
        assert time.monotonic() < until, run.said
        time.sleep(0.1)


def checkpoint_of(run: Any) -> int:
    """Return the step of the only checkpoint; it loads."""
    elman.load(run.folder)
    (folder,) = (run.folder / "checkpoints").glob("step-*")
    return int(folder.name.removeprefix("step-"))


@pytest.mark.parametrize("asked", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_signal_to_one_rank_stops_all_after_the_same_step(start, asked: int) -> None:
    run = start(2, *SLOW, fault={"kind": "slow"})
    steps_of(run, 2)
    os.kill(run.pids[asked], signal.SIGTERM)
    assert run.end() == [130, 130], run.said
    assert run.result["status"] == "interrupted"
    assert checkpoint_of(run) == run.result["steps"] >= 2
    assert run.said.count("SIGTERM: saved after step") == 1


def test_a_nan_of_one_rank_is_the_nan_of_all(start) -> None:
    run = start(2, "parallel.exact=true", fault={"kind": "nan", "rank": 1, "after": 9})
    assert run.end() == [3, 3], run.said
    assert (run.result["status"], run.result["steps"]) == ("nan", 2)
    assert checkpoint_of(run) == 2
    # What keeps ranks from taking one another for somebody else on their GPUs.
    assert run.said.count(f"ranks here: {sorted(run.pids)}") == 2


@pytest.mark.slow
def test_a_rank_without_memory_ends_all_as_out_of_memory(start) -> None:
    run = start(2, fault={"kind": "oom", "rank": 1, "after": 3})
    assert run.end() == [4, 4], run.said
    assert run.result["status"] == "oom"
    assert "rank 1: out of memory (planted)" in run.result["error"]
    assert checkpoint_of(run) == run.result["steps"] == 3


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_rank_is_named_and_the_others_save(start, killed: int) -> None:
    run = start(2, "parallel.exact=true", *SLOW, fault={"kind": "slow"})
    steps_of(run, 2)
    os.kill(run.pids[killed], signal.SIGKILL)
    codes = run.end()
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == 1, run.said
    assert run.result["status"] == "crash"
    assert f"rank {killed}" in run.result["error"]
    assert "was lost" in run.result["error"]
    assert checkpoint_of(run) == run.result["steps"] >= 2


@pytest.mark.required
@pytest.mark.parametrize(
    ("stopped", "spared"),
    [(1, True), (0, True), pytest.param(1, False, marks=pytest.mark.slow)],
    ids=["rank 1", "rank 0, which has the store", "rank 1, of this host"],
)
def test_a_stopped_rank_keeps_nobody_from_ending(start, stopped: int, spared: bool) -> None:
    """The processes end as real ones do, so a library's wait for the stopped rank would show."""
    fault = {"kind": "slow", "silent_seconds": 6.0, "spared": spared, "whole": True}
    run = start(2, *SLOW, fault=fault)
    steps_of(run, 2)
    os.kill(run.pids[stopped], signal.SIGSTOP)
    other = run.pids[1 - stopped]
    try:
        eventually(lambda: gone(other))
        if spared:
            assert Path(f"/proc/{run.pids[stopped]}/stat").read_text().split()[2] == "T"
    finally:
        os.kill(run.pids[stopped], signal.SIGKILL)
        os.kill(other, signal.SIGKILL)
    codes = run.end()
    assert (codes[1 - stopped], codes[stopped]) == (1, -signal.SIGKILL), run.said
    assert run.result["status"] == "crash"
    assert "was lost" in run.result["error"]
    assert checkpoint_of(run) == run.result["steps"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_ranks_whose_torchrun_dies_save_and_end(
    tmp_path: Path, text_file: Path, number: signal.Signals
) -> None:
    """SIGUSR1 too kills torchrun, which most batch scripts send before the time limit."""
    folder = tmp_path / "run"
    settings = [one for one in TINY if one.split("=")[0] not in {one.split("=")[0] for one in SLOW}]
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "elman"]
    places = (f"hydra.run.dir={folder}", f"data.path={text_file}")
    torchrun = subprocess.Popen(
        [sys.executable, "-m", *command, *settings, *SLOW, *places],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    run = RankRun(folder, [], tmp_path / "log", torchrun)  # type: ignore[arg-type]
    steps_of(run, 2)
    torchrun.send_signal(number)
    assert torchrun.wait() == -number
    eventually(lambda: (folder / "result.json").exists())
    assert (run.result["status"], run.result["error"]) == ("interrupted", "torchrun was lost")
    assert checkpoint_of(run) == run.result["steps"] >= 2


def test_a_suspended_job_goes_on(start) -> None:
    """A scheduler stops all ranks for longer than a rank may be silent."""
    fault = {"kind": "slow", "silent_seconds": 6.0}
    run = start(2, *SLOW, fault=fault)
    steps_of(run, 2)
    for pid in run.pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6.5)
    for pid in run.pids:
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)  # a scheduler does not wake all at one moment
    steps_of(run, len(run.records("step")) + 3)
    os.kill(run.pids[0], signal.SIGUSR1)
    assert run.end() == [130, 130], run.said
    assert run.result["status"] == "interrupted"
    assert run.said.count("SIGUSR1: saved after step") == 1
    assert "stopped for " in run.said


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(start) -> None:
    fault = {"kind": "hang", "rank": 1, "after": 3, "hang_seconds": 3.0}
    run = start(2, fault=fault)
    until = time.monotonic() + 180
    while not (run.folder / "result.json").exists() or not run.result:
        assert time.monotonic() < until, run.said
        time.sleep(0.1)
    os.kill(run.pids[1], signal.SIGKILL)
    assert run.end()[0] == 1, run.said
    assert "rank 1 (" in run.result["error"]
    assert "kept the other ranks waiting; it was computing step 4" in run.result["error"]
    assert checkpoint_of(run) == 3


def test_what_no_rank_can_do_is_said_once_and_leaves_nothing(start) -> None:
    run = start(2, "train.batch_size=7")
    assert run.end() == [2, 2], run.said
    assert "elman: error: train.batch_size=7: 2 ranks cannot share its rows equally" in run.said
    assert not run.folder.exists()
