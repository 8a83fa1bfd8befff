"""Launcher ``elman_local``: one job at a time, each in its own fresh process on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque

from hydra.core.utils import JobReturn, JobStatus

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.launchers.command import OF_THE_SWEEP, JobCommand
from elman.launchers.interrupts import Interrupts
from elman.launchers.job import SweepJob, job_count
from elman.launchers.request import Launched, LaunchRequest

# The first signal asks for a save, the second stops waiting for the step, the third kills.
_PATIENCE = 2
_POLL_SECONDS = 0.02


def launch(request: LaunchRequest) -> Launched:
    """Run the jobs in order and return how each ended.

    A job that fails or is killed does not stop the others. After Ctrl-C the running job saves and
    ends, and no further job starts: the returns of those keep the status UNKNOWN.
    """
    returns, pending = list[JobReturn](), deque(request.jobs)
    with Interrupts() as interrupts:
        runner = _Runner(interrupts)
        while pending or not interrupts.count:
            if not pending:
                pending.extend(request.more(1))
            if not pending:
                break
            job = pending.popleft()
            returns.append(JobReturn(overrides=job.for_launcher))
            if not interrupts.count:
                _run_recorded(runner, request, job, returns[-1])
    return Launched(returns, bool(interrupts.count))


def _run_recorded(
    runner: _Runner, request: LaunchRequest, job: SweepJob, returned: JobReturn
) -> None:
    """Run one job of a sweep to its end, and record that."""
    shown = " ".join(text for text in job.for_launcher if not OF_THE_SWEEP.match(text))
    print(f"{job_count(job.number, job.total, grows=request.grows)} {shown}", flush=True)
    request.log.job_started(job.number)
    returned.return_value = _run(runner, request.command_of(job))
    returned.status = JobStatus.COMPLETED
    request.log.job_ended(job.number, returned.return_value)


def _run(runner: _Runner, job: JobCommand) -> int:
    """Run one job of a sweep to its end; a job that has begun before continues in its folder."""
    try:
        arguments = job.command_line()
    except UserError as error:
        print(f"elman: error: {error}", flush=True)
        return int(ExitStatus.USER_ERROR)
    return runner.run([sys.executable, "-m", "elman", *arguments])


class _Runner:
    """Runs one process after another, and passes on the signals that this process gets.

    Every job has its own process group. A Ctrl-C at the terminal then reaches it once, from here. A
    second one, straight from the terminal, would stop it without a save.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def run(self, command: list[str]) -> int:
        """Run one command to its end; a negative status is the signal that killed it."""
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0) as child:
            while child.poll() is None:
                for number in self._interrupts.take():
                    if self._interrupts.count > _PATIENCE:
                        os.killpg(child.pid, signal.SIGKILL)
                    else:
                        child.send_signal(number)
                time.sleep(_POLL_SECONDS)
            return child.returncode
