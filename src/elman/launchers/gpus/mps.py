"""NVIDIA's MPS for the jobs that share a GPU: with it their kernels overlap.

Without it the processes on a GPU take turns. Each shared GPU gets a control daemon of its own,
which :mod:`elman.launchers.gpus.mps_keeper` starts and ends. So the daemon ends with its last job,
and the GPU then looks free to everybody who asks the driver.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CONTROL = "nvidia-cuda-mps-control"
_ENDING_SECONDS = 30.0
_POLL_SECONDS = 0.05


class MpsServer:
    """MPS on one GPU.

    Args:
        name: The GPU's name, for the user.
        uuid: The GPU.
        save_seconds: Time that jobs get to end if this process dies before them.
        refused: Why MPS is not to be used; empty if it is.
        say: Prints one line.
    """

    def __init__(
        self, name: str, uuid: str, save_seconds: float, refused: str, say: Callable[[str], None]
    ) -> None:
        self._name, self._uuid, self._say = name, uuid, say
        self._save_seconds, self._refused = save_seconds, refused
        self._keeper: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._answer: dict[str, Any] | None = None
        self._line, self._said = b"", ""

    def start(self) -> None:
        """Begin to start the daemon; :meth:`settled` says when that is done."""
        self._answer, self._line = None, b""
        if self._refused:
            self._settle({"error": self._refused})
            return
        control = shutil.which(CONTROL)
        assert control is not None
        seconds = str(math.ceil(self._save_seconds))
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "elman.launchers.gpus.mps_keeper", control, self._uuid, seconds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is meant for the launcher
        )
        assert self._keeper.stdout is not None
        os.set_blocking(self._keeper.stdout.fileno(), False)

    def settled(self) -> bool:
        """Whether it is known if the daemon runs; the first time, say so."""
        if self._answer is None and self._keeper is not None:
            assert self._keeper.stdout is not None
            with suppress(BlockingIOError):
                more = os.read(self._keeper.stdout.fileno(), 4096)
                self._line += more
                if not more:
                    self._settle({"error": "the process that starts it has died"})
                elif self._line.endswith(b"\n"):
                    self._settle(json.loads(self._line))
        return self._answer is not None

    def environment(self) -> dict[str, str]:
        """Return the variables that make a job use the daemon; none without one."""
        found: dict[str, str] = (self._answer or {}).get("environment", {})
        return found

    def stop(self) -> None:
        """Have the daemon end, without waiting for it."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            with suppress(BrokenPipeError):
                self._keeper.stdin.close()
            self._ending.append(self._keeper)
        self._keeper = None

    def join(self) -> None:
        """Wait until every daemon that was told to end has ended; say if one takes too long."""
        deadline = time.monotonic() + _ENDING_SECONDS
        while self._ending and time.monotonic() < deadline:
            self._ending = [one for one in self._ending if one.poll() is None]
            time.sleep(_POLL_SECONDS if self._ending else 0)
        for one in self._ending:
            self._say(f"{self._name}: MPS has not ended; process {one.pid} still waits for it")

    def _settle(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        how = "their kernels overlap (MPS)"
        if "error" in answer:
            how = f"they take turns, without MPS: {answer['error']}"
        if how != self._said:
            self._said = how
            self._say(f"{self._name} is shared by jobs: {how}")


def why_no_mps(detach: bool) -> str:
    """Return why a sweep does not use MPS; empty if it does.

    Args:
        detach: Whether jobs may outlive the launcher, with which the daemon ends.
    """
    if detach:
        return "launcher.detach=true lets jobs outlive its daemon"
    return "" if shutil.which(CONTROL) else f"there is no {CONTROL} on PATH"
