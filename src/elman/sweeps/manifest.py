"""``sweep.json``: the request for a sweep, and each job's command, folder and status."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.exit_status import RunStatus
from elman.base.whole_file import put_json
from elman.launchers.command import ALONE
from elman.launchers.job import SweepJob
from elman.runs.state import NOT_STARTED, RUNNING, read_result, state
from elman.runs.status import OutsideEnd, ended_as
from elman.sweeps.recorded_command import Command
from elman.sweeps.suite_runs import ChosenSuite


class Record:
    """Keeps the file: complete from the start, and rewritten whenever a job starts or ends.

    Args:
        folder: The sweep's folder; None writes nothing.
        jobs: Every job of the sweep, whether or not it runs now.
        result_name: The file with which a job ends.
        arguments: Overrides that were typed for the jobs.
        claimed: Overrides that were typed about the models' sizes.
        suite: The suite, if the sweep runs one.
        started: When the sweep began, or was resumed.
        command: The command that started it; None if an old sweep has not recorded it.
        tasks: Jobs that were submitted to a cluster before, with their names there.
        added: The commands that added jobs to the sweep, oldest first.
    """

    def __init__(
        self,
        folder: Path | None,
        jobs: Sequence[SweepJob],
        result_name: str,
        arguments: Sequence[str],
        claimed: Sequence[str],
        suite: ChosenSuite | None,
        started: datetime,
        command: Command | None = None,
        tasks: Mapping[int, str] | None = None,
        added: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._folder, self._jobs, self._result_name = folder, jobs, result_name
        self._arguments, self._claimed = arguments, claimed
        self._suite, self._started = suite, started
        self._command, self._tasks = command, dict(tasks or {})
        self._statuses = {job.number: NOT_STARTED for job in jobs}
        self._reasons: dict[int, str] = {}
        self._places: dict[int, str | None] = {}
        self._added, self._warned = list(added), False

    def begin(self) -> None:
        """Write the state of the jobs' folders: empty in a new sweep, as found in a resumed one."""
        self._statuses = {job.number: state(job.folder, self._result_name) for job in self._jobs}
        self._write(None)

    def job_started(self, number: int, place: str = "") -> None:
        """Note that a job runs now, and where."""
        self._places[number] = place or None
        self._note(number, RUNNING)

    def job_ended(self, number: int, code: int, said: str = "") -> str:
        """Note how a job ended and return the word; ``code``: its exit status, or -signal.

        What it ``said`` last is its reason if it failed and left no result with one, or if its
        result tells another end: rank 0 only saw that it was told to stop.
        """
        result = read_result(self._folder_of(number), self._result_name)
        word = ended_as(code, result)
        if isinstance(code, OutsideEnd) and word != RunStatus.OK:
            self._reasons[number] = code.reason
        elif said and word != RunStatus.OK and (result or {}).get("status") != word:
            self._reasons[number] = said.removeprefix("elman: ")
        self._note(number, word)
        return word

    def submitted(self, tasks: Mapping[int, str]) -> None:
        """Note the names of jobs on a cluster, before anything can happen to this process."""
        self._tasks |= tasks
        self._write(None)

    def job_waits(self, number: int) -> None:
        """Note that a running job was stopped and will run again."""
        self._note(number, state(self._folder_of(number), self._result_name))

    def end(self, statuses: Sequence[str]) -> None:
        """Write the file for the last time."""
        pairs = zip(self._jobs, statuses, strict=True)
        self._statuses = {job.number: status for job, status in pairs}
        self._write(datetime.now())

    def _folder_of(self, number: int) -> Path | None:
        return next(job.folder for job in self._jobs if job.number == number)

    def _note(self, number: int, status: str) -> None:
        self._statuses[number] = status
        self._write(None)

    def _write(self, ended: datetime | None) -> None:
        """Write the file atomically; a full disk is reported once, and stops no job."""
        if self._folder is None:
            return
        try:
            put_json(self._folder / run_files.SWEEP, self._content(ended))
            self._warned = False
        except OSError as error:
            place = self._folder / run_files.SWEEP
            if not self._warned:
                print(f"warning: {place} cannot be written ({error.strerror})", flush=True)
            self._warned = True

    def _content(self, ended: datetime | None) -> dict[str, Any]:
        # A suite's file asks for a sweep by itself.
        alone = [ALONE] if self._suite is not None else []
        recorded = self._command.as_json() if self._command is not None else {}
        return recorded | {
            "command": shlex.join(["elman", "-m", *self._arguments, *self._claimed]),
            "arguments": list(self._arguments),
            "claims": list(self._claimed),
            "added": self._added,
            "mode": self._jobs[0].config.mode,
            "benchmark": self._suite.name if self._suite else None,
            # A report needs it, and by then the suite's file may be gone or changed.
            "suite": self._suite.definition if self._suite else None,
            "started": self._started.isoformat(timespec="seconds"),
            "ended": ended.astimezone().isoformat(timespec="seconds") if ended else None,
            "jobs": [
                {
                    "number": job.number,
                    "model": job.config.model.name,
                    "seed": job.config.train.seed,
                    "swept": list(job.swept),
                    "command": shlex.join(["elman", *job.overrides, *alone]),
                    "folder": job.folder.name if job.folder else None,
                    "status": self._statuses[job.number],
                    "reason": self._reasons.get(job.number),
                    "task": self._tasks.get(job.number),
                    "place": self._places.get(job.number),
                }
                for job in self._jobs
            ],
        }
