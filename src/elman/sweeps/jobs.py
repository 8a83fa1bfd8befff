"""The jobs of a sweep, all checked before one runs: composed, read back, or added to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elman.base.errors import UserError
from elman.base.live_line import QUIET_SECONDS, LiveLine
from elman.base.quoting import quoted
from elman.config.ranks import refuse_sweep_in_rank
from elman.config.run_config import MODES, Mode
from elman.config.suites import GROUP
from elman.launchers.job import SweepJob
from elman.runs.folder import check_free, claim_folder, make_folder, run_name
from elman.runs.prepare import check_files
from elman.sections.launching import SweepConfig
from elman.sweeps.checks import check_jobs, check_sizes, named_job
from elman.sweeps.earlier import EarlierSweep, earlier_sweep
from elman.sweeps.grow import JobList, check_unchanged, composed_again, grown_jobs, nothing_to_add
from elman.sweeps.request import SweepRequest
from elman.sweeps.settings import claims, refuse_in_process, with_sizes
from elman.sweeps.suite_runs import ChosenSuite


@dataclass(frozen=True)
class CheckedSweep:
    """A sweep whose jobs are checked, and that may begin.

    Args:
        job_list: Its jobs, and which of them the command asks for.
        mode: The mode of its jobs.
        folder: Its folder; None if its mode makes none, or with ``sweep.dry_run``.
        earlier: The sweep that it goes on with, or None.
        suite: The suite, or None.
        arguments: The overrides that its first jobs come from.
        claims: Overrides that were typed about the models' sizes.
        sizes: What it claims about them.
        notes: Notes for the reader.
    """

    job_list: JobList
    mode: Mode
    folder: Path | None
    earlier: EarlierSweep | None
    suite: ChosenSuite | None
    arguments: Sequence[str]
    claims: Sequence[str]
    sizes: SweepConfig
    notes: Sequence[str]

    @property
    def jobs(self) -> list[SweepJob]:
        """All jobs."""
        return self.job_list.jobs


def checked_sweep(request: SweepRequest) -> CheckedSweep:
    """Make the jobs of a sweep, check all of them, and make the sweep's folder.

    Raises:
        UserError: a job is wrong, or the launcher could not start it.
    """
    refuse_sweep_in_rank()
    earlier = earlier_sweep(request.settings.sweep)
    jobs, suite = _jobs(request, earlier)
    mode = _one_mode(jobs.jobs)
    if mode.in_process:
        refuse_in_process(request.typed, jobs.jobs[0].config.mode)
    claimed = claims(request.claims, earlier.claims if earlier else ())
    sizes = _sizes(request, earlier, suite, claimed)
    notes = check_sizes(jobs.jobs, jobs.asked, sizes)
    launcher = request.launcher
    notes += check_jobs(jobs.asked, suite, request.settings.launcher, launcher.save_seconds)
    folder = _folder(request, mode, jobs.jobs[0].config.mode, earlier)
    if folder is not None:
        jobs = replace(jobs, jobs=_with_folders(jobs.jobs, folder, earlier))
    if earlier is not None and earlier.grows and jobs.asked:
        allow = request.settings.sweep.allow_changed_code
        notes += check_unchanged(earlier, jobs.jobs[: jobs.before], allow)
    typed = earlier.arguments if earlier is not None and earlier.grows else request.overrides
    arguments = typed or (earlier.arguments if earlier else ())
    return CheckedSweep(jobs, mode, folder, earlier, suite, arguments, claimed, sizes, notes)


def _jobs(
    request: SweepRequest, earlier: EarlierSweep | None
) -> tuple[JobList, ChosenSuite | None]:
    """Return the jobs that a command is about, and their suite."""
    typed, composer = request.overrides, request.composer
    if earlier is None:
        suite = composer.suite(typed)
        return JobList.whole(_composed(request, typed, suite)), suite
    recorded = earlier.jobs()
    for job in recorded or ():
        with named_job(job.number, len(recorded or ()), job.swept or job.overrides):
            check_files(job.config, may_pack=request.may_pack)
    if earlier.grows:
        if not typed:
            raise UserError(nothing_to_add(str(request.settings.sweep.add)))
        suite = earlier.suite() if recorded else composer.suite(earlier.arguments)
        return grown_jobs(request, earlier, recorded, suite), suite
    if recorded is not None and typed in ((), earlier.arguments):
        return JobList.whole(recorded, recorded=True), earlier.suite()
    texts = typed or earlier.arguments
    suite = composer.suite(texts)
    again = earlier.added and not typed
    jobs = composed_again(request, earlier) if again else _composed(request, texts, suite)
    earlier.check_same([job.config for job in jobs])
    return JobList.whole(jobs), suite


def _composed(
    request: SweepRequest, typed: Sequence[str], suite: ChosenSuite | None
) -> list[SweepJob]:
    """Return the jobs that overrides stand for."""
    expanded, jobs = request.composer.expanded(typed, suite), list[SweepJob]()
    with LiveLine(quiet=QUIET_SECONDS) as line:
        for number, (texts, swept) in enumerate(expanded, 1):
            line.show(f"checking the jobs: {number - 1} of {len(expanded)}")
            with named_job(number, len(expanded), swept or texts):
                config = request.composer.config(texts, request.may_pack)
            jobs.append(SweepJob(number, len(expanded), texts, swept, config))
    return jobs


def _sizes(
    request: SweepRequest,
    earlier: EarlierSweep | None,
    suite: ChosenSuite | None,
    claimed: Sequence[str],
) -> SweepConfig:
    """Return what a sweep claims about sizes: as it did at its start, and as it is typed now."""
    settings = request.settings.sweep
    if earlier is None:
        return settings
    recorded = earlier.sizes()
    if recorded is not None:
        return with_sizes(settings, recorded, request.claims)
    # The command that resumes an old sweep names neither its suite nor its settings about sizes.
    chosen = [f"{GROUP}={quoted(suite.name)}"] if suite is not None else []
    return with_sizes(settings, request.composer.sizes([*chosen, *claimed]), ())


def _one_mode(jobs: Sequence[SweepJob]) -> Mode:
    """Return the mode of the jobs, which share one table."""
    names = list(dict.fromkeys(job.config.mode for job in jobs))
    if len(names) > 1:
        raise UserError(f"mode={','.join(names)}: a sweep has one mode; type a command for each")
    return MODES[names[0]]


def _folder(
    request: SweepRequest, mode: Mode, name: str, earlier: EarlierSweep | None
) -> Path | None:
    """Return the sweep's folder, made if it is new; None if it has none."""
    typed = request.folder_typed
    if not mode.makes_folder:
        if typed:
            raise UserError(f"hydra.sweep.dir: mode={name} makes no sweep folder; drop it")
        return None
    if earlier is not None:
        if typed:
            raise UserError(
                f"hydra.sweep.dir: {earlier.key} continues in the sweep's own folder; drop it"
            )
        return earlier.folder
    if request.settings.sweep.dry_run:
        if typed:
            check_free(request.folder, "hydra.sweep.dir")
        return None
    if typed:
        return claim_folder(request.folder, "hydra.sweep.dir")
    return make_folder(request.folder, "sweep")


def _with_folders(
    jobs: Sequence[SweepJob], folder: Path, earlier: EarlierSweep | None
) -> list[SweepJob]:
    """Name each job's folder; those of earlier jobs stay."""
    names = earlier.names if earlier is not None else []
    width = max(2, len(str(len(jobs))))
    names = names + [f"{job.number:0{width}d}_{run_name(job.config)}" for job in jobs[len(names) :]]
    return [replace(job, folder=folder / name) for job, name in zip(jobs, names, strict=True)]
