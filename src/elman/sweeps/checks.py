"""What is checked of the jobs of a sweep before the first one runs, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.config.ranks import Where, check_ranks
from elman.config.run_config import MODES, Mode, RunConfig
from elman.config.suites import GROUP
from elman.evaluation.result import RunResult
from elman.launchers.job import SweepJob, refuse_shared
from elman.launchers.places import check_places
from elman.runs.prepare import check_files
from elman.runs.state import read_run_result
from elman.sections.launching import GpusLauncher, LauncherConfig, ranks_of
from elman.sections.training import DataConfig
from elman.sweeps.devices import check_devices
from elman.sweeps.earlier import EarlierSweep
from elman.sweeps.job_list import JobList, named_job
from elman.sweeps.jobs import PlannedSweep
from elman.sweeps.request import LauncherChoice, SweepRequest
from elman.sweeps.sizes import check_sizes
from elman.sweeps.slow_paths import slow_paths
from elman.sweeps.suite_runs import ChosenSuite
from elman.sweeps.tuned import is_trial

_OF_DATA = ("bytes", "sha256", "sample_sha256", "train_bytes")


def check_sweep(request: SweepRequest, plan: PlannedSweep) -> list[str]:
    """Check every job of a sweep; return notes for the reader.

    Raises:
        UserError: a job is wrong, or the launcher could not start it.
    """
    jobs, launcher = plan.job_list, request.settings.launcher
    if plan.source is not None:
        _refuse_to_grow(request.launcher, plan.mode)
    for job in jobs.jobs[: jobs.recorded]:  # composing has checked the others
        with named_job(job.number, len(jobs.jobs), job.swept or job.overrides):
            check_files(job.config, may_pack=not request.settings.sweep.dry_run)
    compared, started = jobs, jobs.asked
    if plan.source is not None:
        started = list(plan.source.stand_ins)
        compared = JobList.whole([job for job in started if not is_trial(job)])
    known: dict[str, int] = {}
    notes = check_sizes(compared, plan.sizes, known)
    notes += _check_launcher(started, plan.suite, launcher, request.launcher.save_seconds)
    notes += plan.source.check(known) if plan.source is not None else []
    if plan.earlier is not None and plan.earlier.grows and jobs.asked:
        allow = request.settings.sweep.allow_changed_code
        notes += _check_unchanged(plan.earlier, jobs.jobs[: jobs.before], allow)
    return notes


def _refuse_to_grow(launcher: LauncherChoice, mode: Mode) -> None:
    """Raise UserError if a launcher cannot ask for jobs that are made while others run."""
    assert not mode.in_process
    if launcher.hydras is not None:
        raise UserError(
            f"hydra/launcher={launcher.hydras}: it takes all jobs at the start, and this sweep "
            "chooses its jobs by the results of earlier ones; type launcher=gpus, launcher=local "
            "or launcher=slurm in its place"
        )


def _check_launcher(
    jobs: Sequence[SweepJob],
    suite: ChosenSuite | None,
    launcher: LauncherConfig,
    save_seconds: int | None,
) -> list[str]:
    """Refuse what a launcher would refuse, before there is a folder; return notes."""
    if not jobs:
        return []
    mode = MODES[jobs[0].config.mode]
    _refuse_shared(jobs, suite, launcher)
    for job in jobs:
        check_ranks(job.config, Where.LAUNCHER, ranks_of(launcher))
    notes = check_places(jobs, mode, launcher, save_seconds)
    check_devices(jobs, launcher)
    return [*notes, *slow_paths(suite, jobs, launcher), *_files_notes(jobs)]


def _refuse_shared(
    jobs: Sequence[SweepJob], suite: ChosenSuite | None, launcher: LauncherConfig
) -> None:
    """Refuse that jobs share GPUs where speeds count."""
    if not isinstance(launcher, GpusLauncher):
        return
    number = launcher.jobs_per_gpu
    if number > 1 and suite is not None and suite.config.claims_speed:
        raise UserError(
            f"launcher.jobs_per_gpu={number}: {GROUP}={suite.name} compares speeds, and jobs on "
            "one GPU slow each other down; type launcher.jobs_per_gpu=1"
        )
    for job in jobs:
        refuse_shared(number, job.config)


def _files_notes(jobs: Sequence[SweepJob]) -> list[str]:
    """Return a line for each choice of files."""
    read = {repr(job.config.data): job.config for job in jobs}
    return [*dict.fromkeys(note for one in read.values() if (note := files_note(one)))]


def files_note(config: RunConfig) -> str | None:
    """Return which files a job reads, if a glob or folder holds others, too; else None."""
    data = config.data
    if "data" not in MODES[config.mode].reads or not isinstance(data, DataConfig):
        return None
    if not (data.path or data.val_path):
        return None
    from elman.data.text import files_line

    line = files_line(data)
    return f"files: {line}" if line else None


def _check_unchanged(
    earlier: EarlierSweep, jobs: Sequence[SweepJob], allow_code: bool
) -> list[str]:
    """Check that new jobs would have the data and the code of those that ended; return notes.

    Args:
        earlier: The sweep.
        jobs: Its jobs from before, with their folders.
        allow_code: Whether other code is only noted.

    Raises:
        UserError: the data or the code is not what an earlier job had.
    """
    results = [(job, result) for job in jobs if (result := _result(job)) is not None]
    _check_data(earlier, results)
    return list(_check_code(earlier, results, allow_code))


def _result(job: SweepJob) -> RunResult | None:
    result = read_run_result(job.folder) if job.folder is not None else None
    return result if result is not None and result.status == RunStatus.OK else None


def _check_data(earlier: EarlierSweep, results: Sequence[tuple[SweepJob, RunResult]]) -> None:
    seen: set[str] = set()
    for job, result in results:
        text = repr(job.config.data)
        if text in seen or not result.data.model_fields_set:
            continue
        seen.add(text)
        before = result.data.model_dump(include=set(_OF_DATA))
        now = _data_now(job.config)
        if now is not None and now != before:
            raise UserError(
                f"sweep.add={earlier.folder}: the data is not what job {job.number} read: "
                f"{_bytes(before)} then, {_bytes(now)} now; restore the file, or start a new "
                f"sweep: {earlier.first_command}"
            )


def _data_now(config: RunConfig) -> dict[str, Any] | None:
    """Return what identifies the data as it is now; None if it would have to be packed first."""
    from elman.data.text import identity_without_packing

    return identity_without_packing(config.data, config.train.chunk_size, print)


def _bytes(data: Mapping[str, Any]) -> str:
    print_ = str(data.get("sample_sha256") or data.get("sha256") or "unknown")
    return f"{data.get('bytes') or 0:,} bytes, sha256 {print_[:12]}"


def _check_code(
    earlier: EarlierSweep,
    results: Sequence[tuple[SweepJob, RunResult]],
    allow: bool,
) -> Iterator[str]:
    from elman.base.version import __version__
    from elman.devices.environment import revision

    now = revision() or __version__
    revisions = set()
    for job, result in results:
        before = result.environment.revision or result.environment.elman
        if before is None or before in revisions:
            continue
        revisions.add(before)
        if before != now and not allow:
            raise UserError(
                f"sweep.add={earlier.folder}: the code has changed: job {job.number} ran with "
                f"{before}, this is {now}; check that revision out, add "
                f"sweep.allow_changed_code=true, or start a new sweep: {earlier.first_command}"
            )
        if before != now:
            yield f"note: job {job.number} ran with {before}, added jobs run with {now}"
        elif before.endswith("-dirty"):
            yield f"note: {before} has uncommitted changes, so it may not be the code of job 1"
