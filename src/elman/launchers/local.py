"""Launcher ``elman_local``: one job at a time, each in its own fresh process on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from hydra.core.utils import JobReturn, JobStatus

from elman.base.errors import ExitStatus, UserError
from elman.launchers.command import OF_THE_SWEEP, JobCommand
from elman.launchers.interrupts import Interrupts
from elman.launchers.request import Launched, LaunchRequest

# The first signal asks for a save, the second gives up waiting for the step, the third kills.
_PATIENCE = 2
_POLL_SECONDS = 0.02


def launch(request: LaunchRequest) -> Launched:
    """Run the jobs in order and return how each ended.

    A job that fails or is killed does not stop the others. After Ctrl-C the running job saves and
    ends, and no other is started: its return keeps the status UNKNOWN.
    """
    returns = []
    with Interrupts() as interrupts:
        runner = _Runner(interrupts)
        for job in request.jobs:
            overrides = job.for_launcher
            returned = JobReturn(overrides=overrides)
            returns.append(returned)
            if interrupts.count:
                continue
            shown = " ".join(text for text in overrides if not OF_THE_SWEEP.match(text))
            print(f"[{job.number}/{job.total}] {shown}", flush=True)
            request.log.job_started(job.number)
            returned.return_value = _run(runner, request.command_of(job))
            returned.status = JobStatus.COMPLETED
            request.log.job_ended(job.number, returned.return_value)
    return Launched(returns, bool(interrupts.count))


def _run(runner: _Runner, job: JobCommand) -> int:
    """Run one job of a sweep to its end; one that goes on does so in its folder."""
    try:
        arguments = job.command_line()
    except UserError as error:
        print(f"elman: error: {error}", flush=True)
        return int(ExitStatus.USER_ERROR)
    return runner.run([sys.executable, "-m", "elman", *arguments])


class _Runner:
    """Runs one process after another and hands on the signals that this one gets.

    Every job is a process group of its own: a Ctrl-C at the terminal then reaches it once, through
    here, and not a second time from the terminal, which would stop it without a save.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def run(self, command: list[str]) -> int:
        """Run one command to its end; a negative status is the number of the signal it died of."""
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0) as child:
            while child.poll() is None:
                for number in self._interrupts.take():
                    if self._interrupts.count > _PATIENCE:
                        os.killpg(child.pid, signal.SIGKILL)
                    else:
                        child.send_signal(number)
                time.sleep(_POLL_SECONDS)
            return child.returncode
