"""Launcher ``elman_local``: one job at a time, each in its own fresh process on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from elman.compose import typed_overrides
from elman.errors import ExitStatus
from elman.launch import session
from elman.launch.quoting import quoted, unquoted

# Hydra settings of the sweep itself, which its jobs must not see.
_OF_THE_SWEEP = re.compile(r"hydra[./](mode|sweep|sweeper|launcher|run)\b")
# The signals on which a run saves and ends; a closed terminal ends it like SIGTERM.
_FORWARDED = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR2: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGTERM,
}
# The first signal asks for a save, the second gives up waiting for the step, the third kills.
_PATIENCE = 2


def launch(
    config: DictConfig, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
) -> list[JobReturn]:
    """Run the jobs in order and return how each ended.

    A job that fails or is killed does not stop the others. After Ctrl-C the running job saves and
    ends, and no other is started: its return keeps the status UNKNOWN.
    """
    total = initial_job_idx + len(job_overrides)
    returns = []
    with _Runner() as runner:
        for number, overrides in enumerate(job_overrides, initial_job_idx + 1):
            returned = JobReturn(overrides=list(overrides))
            returns.append(returned)
            if runner.stopped:
                continue
            shown = " ".join(text for text in overrides if not _OF_THE_SWEEP.match(text))
            print(f"[{number}/{total}] {shown}", flush=True)
            returned.return_value = runner.run(job_command(config, overrides))
            returned.status = JobStatus.COMPLETED
    if runner.stopped:
        session.current().status = ExitStatus.INTERRUPTED
    return returns


def job_command(config: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Return the command of one job of a sweep."""
    of_hydra = typed_overrides(config, "hydra")
    kept = [text for text in of_hydra if not _OF_THE_SWEEP.match(text)]
    own = [text for text in overrides if not _OF_THE_SWEEP.match(text)]
    place = {
        text.split("=")[0]: unquoted(text) for text in overrides if text.startswith("hydra.sweep.")
    }
    folder = []
    if place:
        path = os.path.join(place["hydra.sweep.dir"], place["hydra.sweep.subdir"])
        folder = [f"hydra.run.dir={quoted(path)}"]
    elman = [sys.executable, "-m", "elman", *session.current().config_flags]
    return [*elman, *own, *kept, "hydra.mode=RUN", *folder]


class _Runner:
    """Runs one process after another and hands on the signals that this one gets.

    Every job is a process group of its own: a Ctrl-C at the terminal then reaches it once, through
    here, and not a second time from the terminal, which would stop it without a save.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._received: list[signal.Signals] = []
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, command: list[str]) -> int:
        """Run one command to its end; a negative status is the number of the signal it died of."""
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0) as child:
            self._child = child
            self._deliver()
            status = child.wait()
            self._child = None
        return status

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        self._received.append(_FORWARDED[signal.Signals(number)])
        self._deliver()

    def _deliver(self) -> None:
        """Send what has been received to the running job, if there is one yet."""
        child = self._child
        if child is None or not self._received or child.poll() is not None:
            return
        if len(self._received) > _PATIENCE:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.send_signal(self._received[-1])

    def __enter__(self) -> _Runner:
        self._before = {number: signal.signal(number, self._receive) for number in _FORWARDED}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
