"""Real processes that are asked to stop, or killed, and are continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TINY = (
    "model.dim=128",
    "model.depth=1",
    "model.n_heads=2",
    "model.n_state=8",
    "train.batch_size=2",
    "train.chunk_size=8",
    "train.val_every=null",
    "data.val_sample=64",
    "log.every=1",
    "log.tensorboard=false",
)
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, text_file: Path) -> Iterator[Start]:
    """Return a function that starts ``elman`` with the tiny run in the test's folder."""
    processes: list[subprocess.Popen[str]] = []

    def run(*overrides: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "elman", f"data.path={text_file}", *TINY, *overrides]
        if any(override.startswith("train.resume=") for override in overrides):
            command = [sys.executable, "-m", "elman", *overrides]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def only_run(folder: Path) -> Path | None:
    """Return the one run folder below ``folder``, if it is there yet."""
    found = list(folder.glob("outputs/*/*"))
    assert len(found) <= 1
    return found[0] if found else None


def steps_recorded(run: Path | None) -> int:
    path = run / "metrics.jsonl" if run else None
    return path.read_text().count('"kind": "step"') if path and path.exists() else 0


def wait_for_steps(folder: Path, process: subprocess.Popen[str], count: int) -> Path:
    """Wait until the run has recorded ``count`` steps, and return its folder."""
    deadline = time.monotonic() + 60
    while steps_recorded(run := only_run(folder)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run is not None
    return run


def result_of(run: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((run / "result.json").read_text())
    return result


@pytest.mark.required
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR2"])
def test_a_signal_finishes_the_step_saves_and_says_interrupted(
    start: Start, tmp_path: Path, name: str
) -> None:
    process = start("train.steps=100000")
    run = wait_for_steps(tmp_path, process, 3)
    process.send_signal(signal.Signals[name])
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"{name}: saved after step" in said
    assert f"elman train.resume={run.relative_to(tmp_path)}" in said
    result = result_of(run)
    assert result["status"] == "interrupted"
    done = int(str(result["steps"]))
    assert (run / "checkpoints" / f"step-{done:07d}" / "model.safetensors").exists()

    again = start(f"train.resume={run}", f"train.steps={done + 2}")
    _, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert f"resuming after step {done}" in said
    assert (result_of(run)["status"], result_of(run)["steps"]) == ("ok", done + 2)
    assert json.loads((run / "result-001.json").read_text())["status"] == "interrupted"


@pytest.mark.required
def test_a_killed_run_resumes_from_its_last_checkpoint(start: Start, tmp_path: Path) -> None:
    process = start("train.steps=100000", "train.save_every=2")
    run = wait_for_steps(tmp_path, process, 6)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    saved = max(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))
    assert saved >= 2
    assert not (run / "result.json").exists()

    again = start(f"train.resume={run}", f"train.steps={saved + 3}")
    _, said = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert f"resuming after step {saved}" in said
    assert result_of(run)["steps"] == saved + 3


def test_a_run_in_progress_cannot_be_resumed_beside_itself(start: Start, tmp_path: Path) -> None:
    process = start("train.steps=100000")
    run = wait_for_steps(tmp_path, process, 2)
    second = start(f"train.resume={run}")
    _, said = second.communicate(timeout=60)
    assert second.returncode == 2
    assert said.count("\n") == 1
    assert "another process" in said
    assert str(process.pid) in said
    assert process.poll() is None


def test_a_second_interrupt_gives_up_at_once_and_earlier_checkpoints_stay(
    start: Start, tmp_path: Path
) -> None:
    process = start("train.steps=100000", "train.save_every=1", "train.batch_size=256")
    run = wait_for_steps(tmp_path, process, 2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert result_of(run)["status"] == "interrupted"
    assert list((run / "checkpoints").glob("step-*/model.safetensors"))
