"""What is checked of the jobs of a sweep before the first one runs, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence

from elman.base.errors import UserError
from elman.base.live_line import QUIET_SECONDS, LiveLine
from elman.config.ranks import Where, check_ranks
from elman.config.run_config import MODES, Mode
from elman.config.suites import GROUP
from elman.launchers.job import SweepJob, refuse_shared, wants_gpu
from elman.runs.prepare import check_files
from elman.sections.launching import (
    GpusLauncher,
    LauncherConfig,
    SlurmLauncher,
    SweepConfig,
    ranks_of,
)
from elman.sections.training import DataConfig
from elman.sweeps.composing import named_job
from elman.sweeps.grow import JobList, check_unchanged
from elman.sweeps.jobs import PlannedSweep
from elman.sweeps.request import LauncherChoice, SweepRequest
from elman.sweeps.sizes import (
    builds_a_model,
    check_countable,
    count_params,
    size_lines,
    spread_note,
)
from elman.sweeps.slow_paths import slow_paths
from elman.sweeps.suite_runs import ChosenSuite
from elman.sweeps.tuned import is_trial


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
            check_files(job.config, may_pack=request.may_pack)
    compared, started = jobs, jobs.asked
    if plan.source is not None:
        started = list(plan.source.stand_ins)
        compared = JobList.whole([job for job in started if not is_trial(job)])
    notes = _check_sizes(compared, plan.sizes)
    notes += _check_launcher(started, plan.suite, launcher, request.launcher.save_seconds)
    notes += plan.source.notes() if plan.source is not None else []
    if plan.earlier is not None and plan.earlier.grows and jobs.asked:
        allow = request.settings.sweep.allow_changed_code
        notes += check_unchanged(plan.earlier, jobs.jobs[: jobs.before], allow)
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


def _check_sizes(job_list: JobList, sizes: SweepConfig) -> list[str]:
    """Build every model without memory; return the notes about their sizes."""
    jobs = job_list.jobs
    if not jobs:
        return []
    mode = MODES[jobs[0].config.mode]
    if mode.in_process or not builds_a_model(jobs[0].config):
        return []
    known: dict[str, int] = {}
    params: list[int] = []
    with LiveLine(quiet=QUIET_SECONDS) as line:
        for job in jobs:
            line.show(f"building the models of the jobs: {len(params)} of {len(jobs)}")
            with named_job(job.number, len(jobs), job.swept or job.overrides):
                params.append(count_params(job.config, known))
                check_countable(job.config, known)
    note = spread_note(jobs, params, sizes) if mode.compares else None
    lines = zip(jobs, size_lines(jobs, params), strict=True)
    asked = [text for job, text in lines if job.number in job_list.wanted]
    return asked + ([note] if note else [])


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
    notes = _check_places(jobs, mode, launcher, save_seconds)
    return [*notes, *slow_paths(suite, jobs, launcher), *_files_notes(jobs, mode)]


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


def _check_places(
    jobs: Sequence[SweepJob], mode: Mode, launcher: LauncherConfig, save_seconds: int | None
) -> list[str]:
    """Check that there are the GPUs, or the cluster, that the jobs need."""
    if isinstance(launcher, GpusLauncher) and not mode.in_process:
        from elman.launchers.gpus.slots import checked_gpus

        checked_gpus(launcher, any(wants_gpu(job.config) for job in jobs))
    elif isinstance(launcher, SlurmLauncher):
        from elman.launchers.slurm import limit_note, refuse_without_folder, refuse_without_slurm

        assert save_seconds is not None
        refuse_without_folder(jobs, mode)
        note = limit_note(jobs, launcher, save_seconds)
        refuse_without_slurm()
        return [note] if note else []
    return []


def _files_notes(jobs: Sequence[SweepJob], mode: Mode) -> list[str]:
    """Return a line for each choice of files, if a glob or folder holds others, too."""
    read = {
        repr(job.config.data): job.config.data
        for job in jobs
        if "data" in mode.reads and isinstance(job.config.data, DataConfig)
    }
    if not any(data.path or data.val_path for data in read.values()):
        return []
    from elman.data.batches import files_told

    lines = [files_told(data) for data in read.values()]
    return [f"files: {line}" for line in dict.fromkeys(lines) if line]
