"""Ranks on a CPU: several processes that train one tiny model through gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("rank_server.py")
TINY = (
    "model.dim=128",
    "model.depth=1",
    "model.n_heads=2",
    "model.n_state=8",
    "train.device=cpu",
    "train.batch_size=8",
    "train.chunk_size=16",
    "train.steps=6",
    "train.val_every=3",
    "data.val_sample=256",
    "data.val_window=16",
    "optim.warmup_steps=2",
    "log.every=2",
    "log.tensorboard=false",
    "log.plot=false",
)


@dataclass
class RankRun:
    """A run of several ranks: its processes, and what it leaves."""

    folder: Path
    pids: list[int]
    log: Path
    server: subprocess.Popen[str]

    def end(self, seconds: float = 90) -> list[int]:
        """Wait for all ranks and return their exit statuses."""
        codes = _ask(self.server, {"wait": seconds})
        for pid, code in zip(self.pids, codes, strict=True):
            if code is None:
                os.kill(pid, signal.SIGKILL)
        assert None not in codes, f"{codes}: a rank did not end\n{self.said}"
        return codes

    @property
    def said(self) -> str:
        """What the ranks printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def result(self) -> dict[str, Any]:
        """The one result."""
        return json.loads((self.folder / "result.json").read_text())

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of one kind in metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def weights(self) -> dict[str, Any]:
        """Return the newest kept weights."""
        from safetensors.torch import load_file

        newest = sorted((self.folder / "checkpoints").glob("step-*"))[-1]
        return load_file(newest / "model.safetensors")


def _ask(server: subprocess.Popen[str], command: dict[str, Any]) -> Any:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(command) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Start the process whose forks are the ranks; it imports torch once for all tests here."""
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path_factory.mktemp("ranks"),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as made:
        yield made
        made.communicate(timeout=180)


@pytest.fixture
def start(server: subprocess.Popen[str], tmp_path: Path, text_file: Path) -> Callable[..., RankRun]:
    """Return a function that starts a run of several ranks and does not wait for it."""

    def started(
        ranks: int, *overrides: str, folder: str = "run", fault: dict[str, Any] | None = None
    ) -> RankRun:
        place, log = tmp_path / folder, tmp_path / f"{folder}-{ranks}.log"
        named = {override.split("=")[0] for override in overrides}
        argv = [setting for setting in TINY if setting.split("=")[0] not in named]
        if "train.resume" in named:
            argv = []
        else:
            argv += [f"hydra.run.dir={place}", f"data.path={text_file}"]
        command = {"start": ranks, "argv": [*argv, *overrides], "fault": fault, "log": str(log)}
        return RankRun(place, _ask(server, command), log, server)

    return started


@pytest.fixture
def ranks(start: Callable[..., RankRun]) -> Callable[..., RankRun]:
    """Return a function that runs several ranks to their good end."""

    def ran(*given: Any, **named: Any) -> RankRun:
        run = start(*given, **named)
        codes = run.end()
        assert set(codes) == {0}, run.said
        return run

    return ran
