"""``launcher=slurm`` on a real SLURM of one node with two pretend GPUs.

Needs root and Debian's packages; continuous integration installs them and must not skip this.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elman.compose import compose_config
from elman.errors import UserError
from elman.launch.planned import SweepJob
from elman.launch.slurm import minutes_of
from elman.schema.launching import SlurmLauncher

STUBS = Path(__file__).parents[1] / "launch" / "stub_modes"


def _node() -> Any:
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import node
    finally:
        sys.path.pop(0)
    return node


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a running SLURM."""
    node = _node()
    if os.getuid() != 0:
        pytest.skip("SLURM's daemons need root")
    if shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        if os.environ.get("CI") != "true":
            pytest.skip(f"no SLURM here: apt-get install {' '.join(node.PACKAGES)}")
        _install(node.PACKAGES)
    folder = tmp_path_factory.mktemp("slurm")
    with node.SlurmNode(folder) as running:
        yield running


def _install(packages: tuple[str, ...]) -> None:
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", "-qq", *command], env=quiet, check=True)


class Sweep:
    """A sweep on a SLURM, started and followed."""

    def __init__(self, slurm: Any, folder: Path, *arguments: str) -> None:
        self.slurm, self.folder = slurm, folder
        (folder / "notes").mkdir()
        environment = slurm.environment | {
            "PYTHONPATH": str(STUBS),
            "STUB_NOTES": str(folder / "notes"),
            "COLUMNS": "160",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elman", "launcher=slurm", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def notes(self, seed: int) -> list[dict[str, Any]]:
        """Return what a job has noted so far."""
        path = self.folder / "notes" / f"{seed}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, waiting: int) -> None:
        """Wait until so many jobs train."""
        deadline = time.monotonic() + 90
        while len(list(self.folder.rglob("waiting"))) < waiting:
            assert time.monotonic() < deadline, self.slurm.run("squeue", "--array")
            time.sleep(0.2)

    def tasks(self, state: str) -> list[str]:
        """Return the tasks of the array in one state."""
        listed = self.slurm.run("squeue", "--noheader", "--array", "--format=%i %T")
        pairs = [line.split() for line in listed.splitlines()]
        return [name for name, has in pairs if has == state]

    def ended(self) -> list[str]:
        """Return the status of every job at the end."""
        output, _ = self.process.communicate(timeout=120)
        (path,) = self.folder.rglob("sweep.json")
        found = [job["status"] for job in json.loads(path.read_text())["jobs"]]
        assert len(found) == 3, output
        return found


@pytest.mark.required
def test_three_jobs_on_two_gpus_two_of_them_preempted(slurm: Any, tmp_path: Path) -> None:
    sweep = Sweep(
        slurm, tmp_path, "train.seed=1,2,3", "train.steps=908", "train.minutes=1", "launcher.jobs=3"
    )
    sweep.wait_for(2)
    assert len(sweep.tasks("RUNNING")) == 2
    (third,) = sweep.tasks("PENDING")
    first, second = sorted(sweep.tasks("RUNNING"))
    # As a cluster preempts that tells the job first, and as one that only requeues it.
    slurm.run("scancel", "--signal=USR2", first)
    slurm.run("scontrol", "requeue", second)
    sweep.wait_for(3)
    slurm.run("scancel", "--signal=USR2", third)
    assert sweep.ended() == ["ok", "ok", "ok"]
    assert sweep.process.returncode == 0
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert [result["resumed"] for result in results] == [True] * 3
    seen = {note["CUDA_VISIBLE_DEVICES"] for seed in (1, 2, 3) for note in sweep.notes(seed)}
    assert seen == {"0", "1"}


@pytest.mark.required
def test_a_killed_job_fails_alone_and_ctrl_c_saves_the_others(slurm: Any, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, "train.seed=1,2,3", "train.steps=908", "launcher.minutes=5")
    sweep.wait_for(2)
    os.kill(sweep.notes(1)[0]["pid"], signal.SIGKILL)
    sweep.wait_for(3)
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.ended() == ["crash", "interrupted", "interrupted"]
    assert sweep.process.returncode == 130


@pytest.mark.required
def test_a_suite_is_an_array_too(slurm: Any, tmp_path: Path) -> None:
    small = ("model.dim=128", "model.depth=1", "sweep.equal_size=false", "train.steps=3")
    sweep = Sweep(slurm, tmp_path, "benchmark=e75_100m", "benchmark.only=e75h4*", *small)
    assert sweep.ended() == ["ok", "ok", "ok"]
    (path,) = tmp_path.rglob("sweep.json")
    record = json.loads(path.read_text())
    assert record["benchmark"] == "e75_100m"
    ran = [(path.parent / job["folder"] / "config.yaml").read_text() for job in record["jobs"]]
    for text, model in zip(ran, ("e75h4n16", "e75h4n24", "e75h4n32"), strict=True):
        assert f"name: {model}\n" in text
        assert "warmup_steps: 100\n" in text  # the suite's own optimiser


def _jobs(*overrides: str) -> list[SweepJob]:
    configs = [compose_config([text]) for text in overrides]
    return [SweepJob(n, len(configs), (), (), config) for n, config in enumerate(configs, 1)]


def test_the_limit_is_that_of_the_longest_job_and_a_margin() -> None:
    settings = SlurmLauncher(name="slurm")
    assert minutes_of(_jobs("train.minutes=0.5", "train.minutes=9.2"), settings) == 25
    assert minutes_of(_jobs("train.seed=1"), settings) == 16
    assert minutes_of(_jobs("train.steps=5"), SlurmLauncher(name="slurm", minutes=7)) == 7


def test_steps_alone_are_no_limit() -> None:
    with pytest.raises(UserError, match=r"job 2 has no train\.minutes .* add launcher\.minutes="):
        minutes_of(_jobs("train.minutes=1", "train.steps=5"), SlurmLauncher(name="slurm"))
