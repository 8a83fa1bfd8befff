"""Measures what a trial costs beyond its training: a job of a sweep, phase by phase.

It runs a sweep of equal jobs with other seeds, whose kernels are compiled and checked by a job
before, and prints the median of each phase of ``seconds`` in result.json. Two lines are made of the
times at which results were written, for jobs that follow each other on one place:

- turn: from one job's result until the next job has its place: the end of a process, the launcher,
  and, where no process waits already, the start and the imports of the next one;
- beyond: from one job's result to the next one's, less its training.

    python benchmarks/trial_cost.py [--jobs 5] [--clock wall|cpu] [override ...]

The overrides are those of the sweep; without any it is the tiny model of a CPU for 20 steps, with
nothing saved. ``--clock cpu`` runs each job alone and counts CPU seconds of all threads, for a
machine that does other work. The promise: on an idle machine at most 3 s beyond training for a tiny
model on two CPU cores, and at most 6 s on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from elman.evaluation.result import Seconds

TINY = ("model=e88_tiny", "train.steps=20")
TRIAL = ("train.checkpoints=false", "log.tensorboard=false", "log.plot=false")
PHASES = tuple(Seconds.model_fields)
BEFORE_THE_PLACE = ("start", "imports", "wait")
# A child counts by its CPU time: every clock of a run is replaced before it starts.
CPU_CHILD = """
import sys, time
from types import SimpleNamespace
from elman.base import phases
from elman.evaluation import metrics
cpu = SimpleNamespace(**vars(time) | {"monotonic": time.process_time,
                                      "perf_counter": time.process_time})
phases.time = metrics.time = cpu
phases._age = time.process_time
from elman.cli.main import main
sys.exit(main())
"""


def sweep(folder: Path, overrides: Sequence[str], jobs: int) -> Iterator[dict[str, float]]:
    """Run a sweep and yield the seconds of each job; the first one of a place has no turn."""
    seeds = ",".join(str(seed) for seed in range(1, jobs + 1))
    command = [sys.executable, "-m", "elman", "-m", *overrides, f"train.seed={seeds}"]
    subprocess.run([*command, f"hydra.sweep.dir={folder}"], check=True, stdout=subprocess.DEVNULL)
    last: dict[str, float] = {}
    for job in json.loads((folder / "sweep.json").read_text())["jobs"]:
        path = folder / job["folder"] / "result.json"
        seconds, written = _seconds(json.loads(path.read_text())), path.stat().st_mtime
        placed = sum(seconds[name] for name in PHASES if name not in BEFORE_THE_PLACE)
        if (before := last.get(job["place"])) is not None:
            seconds["turn"] = written - placed - before
            seconds["beyond"] = written - before - seconds["train"]
        last[job["place"]] = written
        yield seconds


def alone(folder: Path, overrides: Sequence[str], jobs: int) -> Iterator[dict[str, float]]:
    """Run jobs one by one and yield their CPU seconds."""
    for seed in range(1, jobs + 1):
        place = folder / str(seed)
        command = [*overrides, f"train.seed={seed}", f"hydra.run.dir={place}"]
        before = os.times()
        subprocess.run(
            [sys.executable, "-c", CPU_CHILD, *command], check=True, stdout=subprocess.DEVNULL
        )
        after = os.times()
        seconds = _seconds(json.loads((place / "result.json").read_text()))
        whole = after.children_user + after.children_system
        whole -= before.children_user + before.children_system
        seconds["turn"] = whole - sum(seconds.values())
        seconds["beyond"] = whole - seconds["train"]
        yield seconds


def _seconds(result: dict[str, Any]) -> dict[str, float]:
    return {name: result["seconds"].get(name) or 0.0 for name in PHASES}


def show(rows: Sequence[dict[str, float]]) -> None:
    """Print the median and the range of each phase."""
    print(f"{'phase':<12}{'median s':>10}{'least':>10}{'most':>10}{'jobs':>6}")
    for name in (*PHASES, "turn", "beyond"):
        values = [row[name] for row in rows if name in row]
        if values:
            numbers = (median(values), min(values), max(values))
            print(f"{name:<12}" + "".join(f"{value:10.2f}" for value in numbers), end="")
            print(f"{len(values):6}")


def main() -> None:
    """Measure, after one job that compiles and checks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    arguments, overrides = parser.parse_known_args()
    overrides = [*(overrides or TINY), *TRIAL]
    measured = alone if arguments.clock == "cpu" else sweep
    with tempfile.TemporaryDirectory(prefix="elman-trials-") as folder:
        list(sweep(Path(folder) / "first", overrides, 1))
        began = os.getloadavg()[0]
        rows = list(measured(Path(folder) / "jobs", overrides, arguments.jobs))
        print(f"{' '.join(overrides)}; load {began:.1f} before, {os.getloadavg()[0]:.1f} after")
    show(rows)


if __name__ == "__main__":
    main()
