"""``elman -m``: launches the jobs of one command, keeps ``sweep.json``, prints one table.

:mod:`elman.sweeps.jobs` has made the jobs, and :mod:`elman.sweeps.checks` has checked them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, interrupted_status
from elman.base.output import keep_going
from elman.config.run_config import Mode
from elman.launchers.command import job_command
from elman.launchers.job import SweepJob
from elman.launchers.request import JobLauncher, LaunchRequest, More, no_more
from elman.runs.folder import RunLock, discard_folder
from elman.runs.state import NOT_STARTED, read_result, recorded_status, state
from elman.runs.status import job_status
from elman.sections.training import BPE, DataConfig
from elman.sweeps import in_process
from elman.sweeps.jobs import PlannedSweep
from elman.sweeps.live_report import live_report
from elman.sweeps.manifest import Record, sweep_record
from elman.sweeps.request import SweepRequest
from elman.sweeps.resume import goes_on_by, jobs_left
from elman.sweeps.row import SweepRow
from elman.sweeps.source import JobSource
from elman.sweeps.tuned import is_spent_trial, is_trial


@dataclass(frozen=True)
class _Ended:
    """How jobs ended: Hydra's return and the result of each, and whether a signal came."""

    jobs: list[tuple[SweepJob, JobReturn, dict[str, Any] | None]] = field(default_factory=list)
    interrupted: bool = False


def sweep(request: SweepRequest, plan: PlannedSweep, notes: Sequence[str]) -> ExitStatus:
    """Run a whole sweep and return its exit status.

    Args:
        request: The command that asks for it.
        plan: The sweep, checked, with its folder.
        notes: What the reader is told before the first job.

    Raises:
        UserError: the launcher refuses the jobs; none has run then.
    """
    jobs, folder, earlier = plan.jobs, plan.folder, plan.earlier
    if request.settings.sweep.dry_run:
        requested = plan.job_list.new if earlier is not None and earlier.grows else jobs
        if plan.source is not None:
            requested = [job for job in plan.source.stand_ins if is_trial(job)]
        commands = [
            job_command(request.hydra, j.overrides, request.config_flags) for j in requested
        ]
        print(*notes, *commands, sep="\n", flush=True)
        return ExitStatus.OK
    if folder is not None:
        keep_going()
    for line in notes:
        print(line, flush=True)
    record = sweep_record(request, plan)
    with RunLock(folder) if folder is not None else nullcontext():
        if earlier is not None and earlier.grows:
            earlier.check_not_grown_meanwhile()
        page = live_report(folder if plan.mode_name == "train" else None)
        with _saying_how_it_goes_on(folder, earlier is not None), page:
            rows, interrupted = _run(request, plan, record)
        record.end([row.status for row in rows])
    if rows:
        request.table_of(plan.mode)(rows, [job.config for job in record.jobs], folder)
    failed = any(row.failed for row in rows)
    if plan.source is not None:
        failed = not plan.source.complete or any(map(_has_failed, rows, record.jobs))
    if folder is not None and failed:
        print(goes_on_by(folder), flush=True)
    if interrupted:
        return interrupted_status()
    return ExitStatus.FAILED if failed else ExitStatus.OK


@contextmanager
def _saying_how_it_goes_on(folder: Path | None, earlier: bool) -> Iterator[None]:
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


def _run(request: SweepRequest, plan: PlannedSweep, record: Record) -> tuple[list[SweepRow], bool]:
    """Launch the jobs that are asked for, or of those the ones that are not ok yet.

    Returns:
        Every job's line, and whether a signal stopped the sweep.
    """
    mode, earlier = plan.mode, plan.earlier
    todo, adopted = list(plan.jobs), dict[int, str]()
    if earlier is not None:
        launcher = request.settings.launcher
        todo, adopted = jobs_left(plan.job_list.asked, mode, earlier.tasks, launcher)
    record.keep(plan.job_list.unrecorded)
    record.begin()
    if plan.source is not None:
        plan.source.begin(record)
    ended = _Ended()
    if todo or plan.source is not None:
        ended = _launch(request, plan, record, todo, adopted)
    rows = {job.number: _row(job, back, result, mode) for job, back, result in ended.jobs}
    for job in record.jobs:
        if job.number not in rows:
            result = read_result(job.folder, mode.result_file)
            status = state(job.folder, mode.result_file)
            rows[job.number] = SweepRow(job.number, job.swept or job.overrides, status, result)
    return [rows[job.number] for job in record.jobs], ended.interrupted


def _launch(
    request: SweepRequest,
    plan: PlannedSweep,
    record: Record,
    jobs: Sequence[SweepJob],
    adopted: Mapping[int, str],
) -> _Ended:
    """Hand jobs to their launcher; return how each ended, with its result.

    Args:
        request: The command.
        plan: The sweep.
        record: Where it is noted what becomes of the jobs.
        jobs: The jobs that run now.
        adopted: Those of them that are still in a cluster's queue, with their names there.
    """
    if plan.mode.in_process:
        launched, results = in_process.launch(request, jobs)
        ends = zip(jobs, launched.returns, results, strict=True)
        return _Ended(list(ends), launched.interrupted)
    if "data" in plan.mode.reads:
        _learn_tokens([*jobs, *(plan.source.stand_ins if plan.source is not None else ())])
    launcher, interrupted = request.launcher.load(plan.folder), False
    came: list[SweepJob] = []
    if isinstance(launcher, JobLauncher):
        launched = launcher.launch_jobs(
            LaunchRequest(
                jobs,
                request.settings.launcher,
                request.start,
                request.hydra,
                request.config_flags,
                record,
                adopted,
                _more_of(plan.source, record, came),
            )
        )
        returns, interrupted = launched.returns, launched.interrupted
    else:
        returns = list(launcher.launch([job.for_launcher for job in jobs], initial_job_idx=0))
    jobs = [*jobs, *came]
    results = [read_result(job.folder, plan.mode.result_file) for job in jobs]
    return _Ended(list(zip(jobs, returns, results, strict=True)), interrupted)


def _learn_tokens(jobs: Sequence[SweepJob]) -> None:
    """Learn the tokens of jobs here, which shows how far it is, and before a job takes a place.

    Raises:
        UserError: they cannot be learned from the text, or not be kept.
    """
    for config in {repr(job.config.data): job.config for job in jobs}.values():
        if isinstance(config.data, DataConfig) and config.data.tokenizer == BPE:
            from elman.data.text import open_text

            open_text(config.data, config.train.chunk_size, partial(print, flush=True)).close()


def _more_of(source: JobSource | None, record: Record, came: list[SweepJob]) -> More:
    """Return what a launcher asks for further jobs, which are also put into a list."""
    if source is None:
        return no_more

    def more(number: int) -> Sequence[SweepJob]:
        jobs = source.more(number)
        assert {job.number for job in jobs} <= {job.number for job in record.jobs}, "not recorded"
        came.extend(jobs)
        return jobs

    return more


def _has_failed(row: SweepRow, job: SweepJob) -> bool:
    """Whether a job of a tuned sweep leaves it without an answer: a trial may end in any way."""
    return row.failed and not is_spent_trial(job, row.status)


def _row(job: SweepJob, returned: JobReturn, result: dict[str, Any] | None, mode: Mode) -> SweepRow:
    """Return a job's line of the table; a job that did not start now may have begun before."""
    status = job_status(returned, recorded_status(result))
    if status == NOT_STARTED:
        status = state(job.folder, mode.result_file)
    return SweepRow(job.number, job.swept or job.overrides, status, result)
