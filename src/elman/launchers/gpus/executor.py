"""submitit's local executor, but we start the processes and give each its GPU ourselves.

submitit's own controller pins every job to GPU 0, takes no UUIDs, starts all jobs at once, and
closes inherited descriptors. We keep its pickles, folders, logs, results and requeueing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from submitit.core.utils import JobPaths
from submitit.local.local import LOCAL_REQUEUE_RETURN_CODE, LocalExecutor, LocalJob

from elman.base import run_files
from elman.base.exit_status import ExitStatus
from elman.launchers.command import JobCommand
from elman.launchers.gpus import worker
from elman.launchers.gpus.slot import Slot
from elman.launchers.outcome import result_status

REQUEUED = LOCAL_REQUEUE_RETURN_CODE
"""Exit status of a job that saved and wants to be started again."""
# Seconds for a process without a job to remove the run folder that it made, and to end.
_DISMISSED_SECONDS = 20.0
_DISMISSED_POLL = 0.05
# A job sets its own duration; submitit needs some limit to tell preemption from the end.
_MINUTES = 10 * 365 * 24 * 60


class Process:
    """The process of one job, from its start (before there is a GPU for it) to its end."""

    def __init__(self, paths: JobPaths, command: list[str], environment: Mapping[str, str]) -> None:
        """Start ``command``, whose last argument is the descriptor for its answers."""
        self.paths = paths
        self._said = ""
        paths.folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # left by an earlier attempt
            paths.result_pickle.unlink()
        with paths.stdout.open("a") as output, paths.stderr.open("a") as errors:
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self.begun = (errors.tell(), output.tell())
            self.popen = subprocess.Popen(
                [*command, str(writing)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                pass_fds=(writing,),
                # A Ctrl-C at the terminal reaches the job through the launcher only, once.
                start_new_session=True,
            )
        os.close(writing)
        self._answers = reading

    def run_on(self, slot: Slot, what: str) -> None:
        """Order the job to run in a slot; ``what`` describes it to others who want that GPU."""
        order = {"environment": slot.environment(), "locks": slot.uuids(), "what": what}
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):  # it has died: its end will be seen
            self.popen.stdin.write(f"{json.dumps(order)}\n".encode())
            self.popen.stdin.flush()

    def said(self, word: str) -> bool:
        """Whether the process has answered ``word``."""
        with suppress(BlockingIOError):
            self._said += os.read(self._answers, 4096).decode()
        return word in self._said.split()

    def ended(self) -> bool:
        """Whether the job's process has ended; if so, kill the processes that it started."""
        if self.popen.returncode is not None:
            return True
        over = os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if over is None:
            return False
        # Before the process is reaped: afterwards its group's number may be another's.
        self.signal(signal.SIGKILL)
        self.popen.wait()
        return True

    def status(self) -> int:
        """Return the job's exit status; negative, the number of the signal that it died of."""
        code = self.popen.returncode
        assert code is not None
        if code != 0:
            return code if code < 0 or code == REQUEUED else int(ExitStatus.FAILED)
        status = result_status(self.paths)
        return int(ExitStatus.FAILED) if status is None else status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGKILL to all processes of the job, any other to its main process."""
        with suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(self.popen.pid, number)
            else:
                os.kill(self.popen.pid, number)

    def send_away(self) -> None:
        """Tell a waiting process that there is no job for it."""
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.close()

    def close(self) -> None:
        """Close our pipes to the process; kill it if it still runs."""
        if not self.ended():
            self.signal(signal.SIGKILL)
            self.popen.wait()
        os.close(self._answers)
        self.send_away()


def dismiss(processes: Sequence[Process], hurry: Callable[[], bool]) -> None:
    """End processes that wait for a job; kill those that take too long (in a hurry: at once)."""
    for process in processes:
        process.send_away()
    deadline = time.monotonic() + _DISMISSED_SECONDS
    left = list(processes)
    while left and not hurry() and time.monotonic() < deadline:
        left = [process for process in left if not process.ended()]
        time.sleep(_DISMISSED_POLL if left else 0)
    for process in processes:
        process.close()


class Executor(LocalExecutor):
    """Starts a process per submission; the process waits until it gets a slot to run.

    Args:
        folder: Where submitit keeps pickles and logs.
        threads: Threads of a job, unless OMP_NUM_THREADS is set; None leaves it to torch.
        detach: Whether jobs outlive this process.
    """

    def __init__(self, folder: Path, threads: int | None, detach: bool) -> None:
        super().__init__(folder / run_files.SUBMITTED / "%j")
        self._throttling = 0.0
        self._threads, self._launcher = threads, 0 if detach else os.getpid()
        self._next = ""
        self._process: Process | None = None
        self.update_parameters(timeout_min=_MINUTES)

    def start(self, job: JobCommand, name: str) -> Process:
        """Submit a job and return its process, which prepares everything and waits.

        Raises:
            OSError: the disk is full, or no process can be started.
        """
        self._next = name
        self.submit(job)
        assert self._process is not None
        return self._process

    def paths(self, name: str) -> JobPaths:
        """Return where the files of a job are."""
        return JobPaths(self.folder, name, 0)

    def restart(self, name: str) -> Process:
        """Return a new process for a job that was requeued: its pickle already exists."""
        return self._started(name)

    def _submit_command(self, command: str) -> LocalJob[Any]:
        self._process = self._started(self._next)
        return LocalJob(folder=self.folder, job_id=self._next, process=self._process.popen)

    def _started(self, name: str) -> Process:
        own = [sys.executable, "-u", "-m", worker.__name__]
        command = [*own, str(self.folder), str(self._launcher)]
        environment = os.environ | {
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_JOB_ID": name,
            "SUBMITIT_LOCAL_NTASKS": "1",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_GLOBALID": "0",
            "SUBMITIT_LOCAL_LOCALID": "0",
        }
        if self._threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(self._threads))
        return Process(self.paths(name), command, environment)
