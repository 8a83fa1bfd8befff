"""Commands in a folder of their own, on pretend GPUs, which do not outlive their test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elman.devices import locks, nvml
from tests.stubs.forked import Popen


class Commands:
    """A folder with pretend GPUs, and commands in it.

    Args:
        folder: The folder.
        environment: Of every command.
        gpus: The pretend GPUs.

    Attributes:
        started: Every command that was started.
    """

    before: Sequence[str] = ("-m", "elman")
    """What stands before the arguments of every command."""

    def __init__(self, folder: Path, environment: dict[str, str], gpus: Sequence[str] = ()) -> None:
        self.folder, self.started = folder, list[subprocess.Popen[str]]()
        (folder / "notes").mkdir()
        self.environment = environment | {"STUB_NOTES": str(folder / "notes")}
        if gpus:
            pretended = folder / "gpus.json"
            pretended.write_text(json.dumps([{"uuid": uuid} for uuid in gpus]))
            self.environment |= {nvml.PRETENDED: str(pretended), locks.FOLDER: f"{folder}/locks"}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """Start a command, with more in its environment."""
        started = Popen(
            [sys.executable, *self.before, *arguments],
            cwd=self.folder,
            env=self.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(started)
        return started

    def run(self, *arguments: str, **more: str) -> tuple[int, str]:
        """Run a command to its end; return its exit status and what it printed."""
        started = self.start(*arguments, **more)
        output, _ = started.communicate(timeout=400)
        return started.returncode, output

    def end(self) -> None:
        """Kill every command that still runs."""
        for started in self.started:
            started.kill()
        for started in self.started:
            started.communicate()

    def lines(self) -> list[dict[str, Any]]:
        """Return what the jobs have noted, those of a job in order."""
        texts = [path.read_text() for path in (self.folder / "notes").glob("*.jsonl")]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    @property
    def sweep(self) -> Path:
        """The folder of the one sweep."""
        (found,) = self.folder.glob("outputs/*/*_sweep")
        return found

    def record(self) -> dict[str, Any]:
        """Return the record of the one sweep."""
        found: dict[str, Any] = json.loads((self.sweep / "sweep.json").read_text())
        return found
