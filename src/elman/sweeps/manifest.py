"""``sweep.json``: the request for a sweep, and each job's command, folder and status."""

from __future__ import annotations

import os
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
from elman.runs.recorded_job import RecordedJob, record_jobs
from elman.runs.state import NOT_STARTED, RUNNING, read_result, recorded_status, state
from elman.runs.status import OutsideEnd, ended_as
from elman.sweeps.jobs import PlannedSweep
from elman.sweeps.request import SweepRequest


class Record:
    """Keeps the file: complete from the start, and rewritten whenever a job starts or ends.

    Args:
        folder: The sweep's folder; None writes nothing.
        jobs: Every job of the sweep, whether or not it runs now; more may be added.
        result_name: The file with which a job ends.
        head: What the file says beside the jobs; a mode, the suite and times are added.
        tasks: Jobs that were submitted to a cluster before, with their names there.
    """

    def __init__(
        self,
        folder: Path | None,
        jobs: Sequence[SweepJob],
        result_name: str,
        head: Mapping[str, Any] | None = None,
        tasks: Mapping[int, str] | None = None,
    ) -> None:
        self._folder, self._jobs, self._result_name = folder, list(jobs), result_name
        self._head, self._tasks = dict(head or {}), dict(tasks or {})
        self._statuses = {job.number: NOT_STARTED for job in jobs}
        self._reasons: dict[int, str] = {}
        self._places: dict[int, str | None] = {}
        self._warned = False

    @property
    def folder(self) -> Path | None:
        """The sweep's folder; None if it has none."""
        return self._folder

    @property
    def jobs(self) -> Sequence[SweepJob]:
        """Every job of the sweep so far, in order."""
        return tuple(self._jobs)

    def status_of(self, number: int) -> str:
        """Return the word for the state of a job, or for how it ended."""
        return self._statuses[number]

    def add(self, jobs: Sequence[SweepJob], head: Mapping[str, Any] | None = None) -> None:
        """Record jobs that the sweep did not have, before they can start.

        Args:
            jobs: The jobs; their numbers follow those of the others.
            head: What the file says from now on beside the jobs, by key: a change of its state that
                belongs to these jobs, or to none. Both are written at once.
        """
        self.keep(jobs)
        self._jobs += jobs
        self._statuses |= {job.number: state(job.folder, self._result_name) for job in jobs}
        self._head |= head or {}
        self._write(None)

    def relabel(self, jobs: Sequence[SweepJob]) -> None:
        """Record other facts of jobs that the sweep has: what they are for has changed."""
        self.keep(jobs)
        changed = {job.number: job for job in jobs}
        self._jobs = [changed.get(job.number, job) for job in self._jobs]
        self._write(None)

    def keep(self, jobs: Sequence[SweepJob]) -> None:
        """Keep the configurations of new jobs, in a file of their own."""
        if self._folder is None:
            return
        kept = {
            job.folder.name: RecordedJob(job.overrides, job.config, job.tuning)
            for job in jobs
            if job.folder is not None
        }
        try:
            record_jobs(self._folder, kept)
        except OSError as error:
            self._warn(run_files.SWEEP_JOBS, error)

    def begin(self) -> None:
        """Write the state of the jobs' folders: empty in a new sweep, as found in a resumed one."""
        for job in self._jobs:
            self._statuses[job.number] = state(job.folder, self._result_name)
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
        recorded = recorded_status(read_result(self._folder_of(number), self._result_name))
        word = ended_as(code, recorded)
        if isinstance(code, OutsideEnd) and word != RunStatus.OK:
            self._reasons[number] = code.reason
        elif said and word != RunStatus.OK and recorded != word:
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
            self._warn(run_files.SWEEP, error)

    def _warn(self, name: str, error: OSError) -> None:
        if not self._warned and self._folder is not None:
            place = self._folder / name
            print(f"warning: {place} cannot be written ({error.strerror})", flush=True)
        self._warned = True

    def _content(self, ended: datetime | None) -> dict[str, Any]:
        # A suite's file asks for a sweep by itself.
        alone = [ALONE] if self._head.get("benchmark") is not None else []
        return self._head | {
            "ended": ended.astimezone().isoformat(timespec="seconds") if ended else None,
            "jobs": [self._line(job, alone) for job in self._jobs],
        }

    def _line(self, job: SweepJob, alone: Sequence[str]) -> dict[str, Any]:
        line = {
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
        return line if job.tuning is None else line | {"tuning": dict(job.tuning)}


def sweep_record(request: SweepRequest, plan: PlannedSweep) -> Record:
    """Return what keeps the ``sweep.json`` of a sweep.

    Args:
        request: The command that starts it, or goes on with it.
        plan: The sweep.
    """
    earlier, suite = plan.earlier, plan.suite
    started = request.started.isoformat(timespec="seconds")
    added = earlier.added if earlier is not None else []
    gets_more = plan.job_list.new or plan.source is not None
    if earlier is not None and earlier.grows and gets_more:
        typed = shlex.join(["elman", *request.argv])
        added.append({"typed": typed, "arguments": list(request.overrides), "started": started})
    head = _command(request, plan) | {
        "command": shlex.join(["elman", "-m", *plan.arguments, *plan.claims, *request.tune_texts]),
        "arguments": list(plan.arguments),
        "claims": list(plan.claims),
        "sizes": plan.sizes.model_dump(include={"equal_size", "max_params_spread"}),
        "added": added,
        "mode": plan.mode_name,
        "benchmark": suite.name if suite else None,
        # A report needs it, and by then the suite's file may be gone or changed.
        "suite": suite.definition if suite else None,
        "started": started,
    }
    if earlier is not None and earlier.tune is not None:
        head["tune"] = earlier.tune
    head |= plan.source.head() if plan.source is not None else {}
    tasks = earlier.tasks if earlier is not None else {}
    return Record(plan.folder, plan.jobs, plan.mode.result_file, head, tasks)


def _command(request: SweepRequest, plan: PlannedSweep) -> dict[str, Any]:
    """Return the command that started the sweep, from which ``sweep.resume`` builds its own.

    The launcher is the present one. An old sweep has not recorded its command.
    """
    first: dict[str, Any] = {
        "typed": shlex.join(["elman", *request.argv]),
        "argv": list(request.argv),
        "cwd": os.getcwd(),
        "flags": list(request.config_flags),
        "hydra": list(request.hydra),
    }
    if plan.earlier is not None:
        recorded = plan.earlier.content
        if "argv" not in recorded:
            return {}
        first = {name: recorded[name] for name in first}
    launcher = request.launcher
    return first | {"launcher": {"name": launcher.name, "overrides": list(launcher.overrides)}}
