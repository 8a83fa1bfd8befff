"""What is checked of the jobs of a sweep before the first one runs, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from elman.base.errors import UserError
from elman.base.live_line import QUIET_SECONDS, LiveLine
from elman.config.ranks import Where, check_ranks
from elman.config.run_config import MODES, Mode
from elman.config.suites import GROUP
from elman.launchers.job import SweepJob, refuse_shared, wants_gpu
from elman.sections.launching import (
    GpusLauncher,
    LauncherConfig,
    SlurmLauncher,
    SweepConfig,
    ranks_of,
)
from elman.sections.training import DataConfig
from elman.sweeps.sizes import (
    builds_a_model,
    check_countable,
    count_params,
    size_lines,
    spread_note,
)
from elman.sweeps.slow_paths import slow_paths
from elman.sweeps.suite_runs import ChosenSuite


def check_sizes(
    jobs: Sequence[SweepJob], asked: Sequence[SweepJob], sizes: SweepConfig
) -> list[str]:
    """Build every model without memory; return the notes about their sizes.

    Args:
        jobs: All jobs of the sweep.
        asked: Those that the command asks for.
        sizes: What the sweep claims about sizes.

    Raises:
        UserError: a model cannot be built, or the sizes are not as claimed.
    """
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
    numbers = {job.number for job in asked}
    lines = zip(jobs, size_lines(jobs, params), strict=True)
    return [text for job, text in lines if job.number in numbers] + ([note] if note else [])


def check_jobs(
    jobs: Sequence[SweepJob],
    suite: ChosenSuite | None,
    launcher: LauncherConfig,
    save_seconds: int | None,
) -> list[str]:
    """Refuse what a launcher would refuse, before there is a folder; return notes.

    Args:
        jobs: The jobs that a command asks for.
        suite: Their suite, or None.
        launcher: The launcher's settings.
        save_seconds: How long before its limit a cluster tells a job to save.

    Raises:
        UserError: a job cannot run there.
    """
    if not jobs:
        return []
    mode = MODES[jobs[0].config.mode]
    _refuse_shared(jobs, suite, launcher)
    for job in jobs:
        check_ranks(job.config, Where.LAUNCHER, ranks_of(launcher))
    notes = _check_places(jobs, mode, launcher, save_seconds)
    return [*notes, *slow_paths(suite, jobs, launcher), *_files_notes(jobs, mode)]


@contextmanager
def named_job(number: int, total: int, overrides: Sequence[str]) -> Iterator[None]:
    """Add to an error which job of the sweep it is about."""
    try:
        yield
    except UserError as error:
        label = " ".join(overrides)
        named = "" if str(error).startswith(label) else f" ({label})"
        raise UserError(f"job {number} of {total}{named}: {error}") from error


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
        from elman.launchers.gpus.places import checked_gpus

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
