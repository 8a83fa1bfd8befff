"""``elman -m``: launches the checked jobs of one command, keeps ``sweep.json``, prints one table.

:mod:`elman.sweeps.jobs` makes and checks the jobs; the launcher decides how they are started.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, interrupted_status
from elman.base.output import keep_going
from elman.base.quoting import pasteable
from elman.config.run_config import Mode
from elman.launchers.command import Start, job_command
from elman.launchers.job import SweepJob
from elman.launchers.request import JobLauncher, LaunchRequest
from elman.runs.folder import RunLock, discard_folder
from elman.runs.prepared import PreparedRun
from elman.runs.state import NOT_STARTED, read_result, state, still_running
from elman.runs.status import job_status
from elman.sections.launching import SlurmLauncher, SweepSettings
from elman.sweeps import in_process
from elman.sweeps.grow import Grown, check_not_grown_meanwhile
from elman.sweeps.jobs import CheckedSweep, checked_sweep
from elman.sweeps.living_page import living_page
from elman.sweeps.manifest import Record
from elman.sweeps.recorded_command import recorded_command
from elman.sweeps.resume import goes_on_by, in_queue, recorded_tasks, unfinished
from elman.sweeps.row import PrintTable, SweepRow


@dataclass(frozen=True)
class SweepCommand:
    """The command that asks for a sweep, with the functions that the sweep borrows from it.

    Args:
        overrides: Its overrides, without those of Hydra's own settings.
        argv: The whole command as typed, without the program's name.
        config_flags: Its flags that say where YAML files are found.
        start: Runs a command line; the process of each job calls it.
        run: Runs a prepared job in this process.
        table_of: Returns the function that prints the table of a mode.
    """

    overrides: Sequence[str]
    argv: Sequence[str]
    config_flags: tuple[str, ...]
    start: Start
    run: Callable[[PreparedRun], int]
    table_of: Callable[[Mode], PrintTable]


@dataclass(frozen=True)
class _Ended:
    """How jobs ended: Hydra's return and the result of each, and whether a signal came."""

    jobs: list[tuple[JobReturn, dict[str, Any] | None]]
    interrupted: bool = False


def sweep(
    context: HydraContext, task: TaskFunction, config: DictConfig, command: SweepCommand
) -> ExitStatus:
    """Run a whole sweep and return its exit status.

    Args:
        context: Hydra's context, which composes.
        task: Hydra's task function, for Hydra's own launchers.
        config: The composed tree.
        command: The command.

    Raises:
        UserError: a job is wrong; no job has run then.
    """
    started = datetime.now().astimezone()
    checked = checked_sweep(context, config, command.overrides)
    jobs, mode, folder = checked.jobs, checked.mode, checked.folder
    if checked.settings.sweep.dry_run:
        asked = checked.grown.new if checked.adds else jobs
        commands = (job_command(config, job.overrides, command.config_flags) for job in asked)
        print(*checked.said, *commands, sep="\n", flush=True)
        return ExitStatus.OK
    if folder is not None:
        keep_going()
    for line in checked.said:
        print(line, flush=True)
    record = _record(checked, config, command, started)
    launch = _Launch(context, task, config, command, checked.settings, record)
    with RunLock(folder) if folder is not None else nullcontext():
        if checked.adds and checked.earlier is not None and folder is not None:
            check_not_grown_meanwhile(folder, checked.earlier)
        page = living_page(folder if jobs[0].config.mode == "train" else None)
        with _said_how_it_goes_on(folder, checked.earlier is not None), page:
            rows, interrupted = _run(launch, checked.grown, mode, checked.earlier)
        record.end([row.status for row in rows])
    command.table_of(mode)(rows, [job.config for job in jobs], folder)
    failed = any(row.failed for row in rows)
    if folder is not None and failed:
        print(goes_on_by(folder), flush=True)
    if interrupted:
        return interrupted_status()
    return ExitStatus.FAILED if failed else ExitStatus.OK


def _record(
    checked: CheckedSweep, config: DictConfig, command: SweepCommand, started: datetime
) -> Record:
    """Return what keeps the sweep's ``sweep.json``."""
    earlier = checked.earlier
    return Record(
        checked.folder,
        checked.jobs,
        checked.mode.result_file,
        checked.arguments,
        checked.claimed,
        checked.suite,
        started,
        recorded_command(config, checked.settings, earlier, command.argv, command.config_flags),
        recorded_tasks(earlier),
        _added(earlier, command, checked.added, started),
    )


@contextmanager
def _said_how_it_goes_on(folder: Path | None, earlier: bool) -> Iterator[None]:
    """Say how to resume a sweep that an error ends; one that ran no job leaves no folder."""
    try:
        yield
    except BaseException as error:
        if folder is None:
            raise
        jobs = any(path.is_dir() and path.name != run_files.SUBMITTED for path in folder.iterdir())
        if isinstance(error, UserError) and not earlier and not jobs:
            discard_folder(folder)  # refused by the launcher before any job
        elif folder.is_dir():
            print(goes_on_by(folder), flush=True)
        raise


@dataclass(frozen=True)
class _Launch:
    """Everything that launching the jobs of a sweep needs."""

    context: HydraContext
    task: TaskFunction
    config: DictConfig
    command: SweepCommand
    settings: SweepSettings
    record: Record

    def run(self, jobs: Sequence[SweepJob], mode: Mode, adopted: Mapping[int, str]) -> _Ended:
        """Hand the jobs to their launcher; return how each ended, with its result.

        Args:
            jobs: The jobs.
            mode: Their mode.
            adopted: Jobs that are still in a cluster's queue, with their names there.
        """
        if mode.in_process:
            launched, found = in_process.launch(
                self.command.run, self.config, jobs, self.command.config_flags
            )
            return _Ended(list(zip(launched.returns, found, strict=True)), launched.interrupted)
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=self.context, task_function=self.task, config=self.config
        )
        interrupted = False
        if isinstance(launcher, JobLauncher):
            launched = launcher.launch_jobs(self._request(jobs, adopted))
            returns, interrupted = launched.returns, launched.interrupted
        else:
            returns = list(launcher.launch([job.for_launcher for job in jobs], initial_job_idx=0))
        results = [read_result(job.folder, mode.result_file) for job in jobs]
        return _Ended(list(zip(returns, results, strict=True)), interrupted)

    def _request(self, jobs: Sequence[SweepJob], adopted: Mapping[int, str]) -> LaunchRequest:
        return LaunchRequest(
            self.config,
            jobs,
            self.settings.launcher,
            self.command.start,
            self.command.config_flags,
            self.record,
            adopted,
        )


def _run(
    launch: _Launch, grown: Grown, mode: Mode, earlier: dict[str, Any] | None
) -> tuple[list[SweepRow], bool]:
    """Launch the jobs that are asked for, or of those the ones that are not ok yet.

    Returns:
        Every job's line, and whether a signal stopped the sweep.
    """
    jobs = grown.jobs
    todo, adopted = list(jobs), dict[int, str]()
    if earlier is not None:
        todo, adopted = _left(grown.asked, mode, recorded_tasks(earlier), launch.settings)
    launch.record.begin()
    ended = launch.run(todo, mode, adopted) if todo else _Ended([])
    pairs = zip(todo, ended.jobs, strict=True)
    rows = {job.number: _row(job, *end, mode) for job, end in pairs}
    for job in jobs:
        if job.number not in rows:
            result = read_result(job.folder, mode.result_file)
            status = state(job.folder, mode.result_file)
            rows[job.number] = SweepRow(job.number, job.swept or job.overrides, status, result)
    return [rows[job.number] for job in jobs], ended.interrupted


def _left(
    jobs: Sequence[SweepJob], mode: Mode, tasks: Mapping[int, str], settings: SweepSettings
) -> tuple[list[SweepJob], dict[int, str]]:
    """Return the jobs of an earlier sweep that are to run, or to follow in a cluster's queue.

    It leaves out jobs that are ok and jobs that another process still runs. The second result has
    the names of the jobs to follow.
    """
    todo = unfinished(jobs, [read_result(job.folder, mode.result_file) for job in jobs])
    print(f"{len(jobs) - len(todo)} of {len(jobs)} jobs are ok already", flush=True)
    folders = {job.number: job.folder for job in todo if job.folder is not None}
    queued = in_queue({n: task for n, task in tasks.items() if n in folders}, settings.launcher)
    adopts = isinstance(settings.launcher, SlurmLauncher)
    alone = {number: folder for number, folder in folders.items() if number not in queued}
    running = still_running(alone, mode.result_file, lambda line: print(line, flush=True))
    where = {number: f"still runs (pid {process})" for number, process in running.items()}
    if not adopts:
        where |= {number: f"is in SLURM's queue as {task}" for number, task in queued.items()}
    for number, what in where.items():
        again = f"elman -m {pasteable('sweep.resume', str(folders[number].parent))}"
        again += " launcher=slurm" if number in queued else ""
        print(
            f"job {number} {what} and is not started again; once it has ended, type {again}",
            flush=True,
        )
    # A job that was ending may be ok by now.
    left = unfinished(todo, [read_result(job.folder, mode.result_file) for job in todo])
    return [job for job in left if job.number not in where], queued if adopts else {}


def _added(
    earlier: Mapping[str, Any] | None,
    command: SweepCommand,
    typed: Sequence[str],
    started: datetime,
) -> list[dict[str, Any]]:
    """Return the commands that added jobs to a sweep, with this one if it does."""
    found = list((earlier or {}).get("added") or [])
    if earlier is None or not typed:
        return found
    when = started.isoformat(timespec="seconds")
    line = shlex.join(["elman", *command.argv])
    return [*found, {"typed": line, "arguments": list(typed), "started": when}]


def _row(job: SweepJob, returned: JobReturn, result: dict[str, Any] | None, mode: Mode) -> SweepRow:
    """Return a job's line of the table; a job that did not start now may have begun before."""
    status = job_status(returned, result)
    if status == NOT_STARTED:
        status = state(job.folder, mode.result_file)
    return SweepRow(job.number, job.swept or job.overrides, status, result)
