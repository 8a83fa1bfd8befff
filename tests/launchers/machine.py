"""A machine with pretend GPUs, and launchers of stub jobs on it as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from elman.devices import locks, nvml
from tests.stubs.forked import Popen

STUBS = Path(__file__).parents[1] / "stubs" / "stub_modes"


class Machine:
    """A folder with pretend GPUs, and launchers of stub jobs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, []
        (folder / "notes").mkdir()

    def pretend(self, *gpus: dict[str, Any]) -> None:
        """Set what the driver says from now on."""
        scratch = self.folder / "gpus.tmp"
        scratch.write_text(json.dumps([{"uuid": f"GPU-{n}"} | gpu for n, gpu in enumerate(gpus)]))
        scratch.rename(self.folder / "gpus.json")

    def launch(
        self,
        ends: str,
        first: int = 1,
        seconds: float = 0.1,
        save: float = 60,
        wait: float = 60,
        each: int = 1,
        share: int = 1,
        **more: str,
    ) -> subprocess.Popen[str]:
        """Start a launcher with a job for each letter, on so many GPUs each, or sharing them."""
        environment = (
            os.environ
            | more
            | {
                nvml.PRETENDED: str(self.folder / "gpus.json"),
                locks.FOLDER: str(self.folder / "locks"),
                "PYTHONPATH": str(STUBS),
                "STUB_FORKS": "yes",
            }
        )
        numbers = [str(value) for value in (seconds, save, wait, each, share)]
        script = str(STUBS / "stub_launcher.py")
        started = Popen(
            [sys.executable, script, str(self.folder), str(first), ends, *numbers],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(started)
        return started

    def notes(self) -> list[dict[str, Any]]:
        """Return everything that the jobs have noted, in the order of time."""
        texts = [path.read_text() for path in (self.folder / "notes").glob("*.jsonl")]
        found = [json.loads(line) for text in texts for line in text.splitlines()]
        return sorted(found, key=lambda note: note["time"])

    def wait_for(self, what: str, number: int = 1) -> list[dict[str, Any]]:
        """Return the notes of one kind once there are so many."""
        deadline = time.monotonic() + 180
        while len(found := [note for note in self.notes() if note["what"] == what]) < number:
            assert time.monotonic() < deadline, "the jobs did not come so far"
            time.sleep(0.05)
        return found

    def intervals(self) -> dict[str, list[tuple[float, float]]]:
        """Return when each GPU was in use by jobs that ended well, in order."""
        starts: dict[int, dict[str, Any]] = {}
        found = defaultdict(list)
        for note in self.notes():
            if note["what"] == "start":
                starts[note["pid"]] = note
            elif note["what"] == "end":
                for gpu in note["gpu"].split(","):
                    found[gpu].append((starts[note["pid"]]["time"], note["time"]))
        return {gpu: sorted(pairs) for gpu, pairs in found.items()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Return a machine whose launchers and jobs do not outlive the test."""
    monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
    made = Machine(tmp_path)
    yield made
    for started in made.started:
        started.kill()
        started.communicate()
    for note in made.notes():
        if note["what"] == "stubborn":  # the others end with their launcher
            with suppress(ProcessLookupError):
                os.kill(note["pid"], signal.SIGKILL)


def ends(launcher: subprocess.Popen[str]) -> list[int | None]:
    """Return the exit status of every job of a launcher that ends by itself."""
    output, errors = launcher.communicate(timeout=120)
    assert output, errors
    return json.loads(output)


def gaps(machine: Machine) -> list[float]:
    """Return the times between the jobs of each GPU; negative where two overlap."""
    pairs = machine.intervals().values()
    return [b[0] - a[1] for one in pairs for a, b in pairwise(one)]
