"""Which jobs a sweep has: composed from a command, read back, or added to others."""

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
from elman.runs.folder import check_free, claim_folder, make_folder
from elman.sections.launching import SweepConfig
from elman.sweeps.earlier import EarlierSweep, earlier_sweep
from elman.sweeps.grow import composed_again, grown_jobs, nothing_to_add
from elman.sweeps.job_list import JobList, in_sweep
from elman.sweeps.request import SweepRequest
from elman.sweeps.settings import claims, refuse_in_process, with_sizes
from elman.sweeps.source import JobSource
from elman.sweeps.suite_runs import ChosenSuite
from elman.sweeps.tuned_plan import earlier_source, new_source


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep: which jobs it has, and what is known of it before they run.

    Args:
        job_list: Its jobs, and which of them the command asks for; if it grows there may be none.
        mode: The mode of its jobs.
        earlier: The sweep that it goes on with, or None.
        suite: The suite, or None.
        arguments: The overrides that its first jobs come from.
        claims: Overrides that were typed about the models' sizes.
        sizes: What it claims about them.
        folder: Its folder; None before it is made, if its mode makes none, or with
            ``sweep.dry_run``.
        source: Makes further jobs while these run; None if there are only these.
    """

    job_list: JobList
    mode: Mode
    earlier: EarlierSweep | None
    suite: ChosenSuite | None
    arguments: Sequence[str]
    claims: Sequence[str]
    sizes: SweepConfig
    folder: Path | None = None
    source: JobSource | None = None

    @property
    def jobs(self) -> list[SweepJob]:
        """All jobs."""
        return self.job_list.jobs

    @property
    def mode_name(self) -> str:
        """The mode of the jobs, as it is typed."""
        return next(name for name, mode in MODES.items() if mode is self.mode)


def planned_sweep(request: SweepRequest) -> PlannedSweep:
    """Return the sweep that a command asks for; its jobs are composed, or read back.

    Raises:
        UserError: a setting is wrong, or an earlier sweep cannot go on.
    """
    refuse_sweep_in_rank()
    earlier = earlier_sweep(request.settings.sweep)
    source: JobSource | None = None
    if request.settings.tune is not None or (earlier is not None and earlier.tune is not None):
        job_list, suite, source = _tuned(request, earlier)
    else:
        job_list, suite = _jobs(request, earlier)
    mode = _one_mode(job_list.jobs) if source is None else MODES["train"]
    if mode.in_process:
        refuse_in_process(request.typed, job_list.jobs[0].config.mode)
    arguments, claimed = request.overrides, claims(request.claims)
    if earlier is not None:
        claimed = claims(request.claims, earlier.claims)
        arguments = earlier.arguments if earlier.grows or not arguments else arguments
    sizes = _sizes(request, earlier, suite, claimed)
    return PlannedSweep(job_list, mode, earlier, suite, arguments, claimed, sizes, source=source)


def with_folder(request: SweepRequest, plan: PlannedSweep) -> PlannedSweep:
    """Return a checked sweep with its folder, which is made if it is new.

    Raises:
        UserError: the folder is taken, or the mode makes none.
    """
    folder = _folder(request, plan.mode, plan.mode_name, plan.earlier)
    if folder is None:
        return plan
    jobs = [job if job.folder is not None else in_sweep(job, folder) for job in plan.jobs]
    return replace(plan, folder=folder, job_list=replace(plan.job_list, jobs=jobs))


def _jobs(
    request: SweepRequest, earlier: EarlierSweep | None
) -> tuple[JobList, ChosenSuite | None]:
    """Return the jobs that a command is about, and their suite."""
    typed, composer = request.overrides, request.composer
    if earlier is None:
        suite = composer.suite(typed)
        return JobList.whole(_composed(request, typed, suite)), suite
    recorded = earlier.jobs()
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
    named = zip(jobs, earlier.names, strict=True)
    return JobList.whole([replace(job, folder=earlier.folder / n) for job, n in named]), suite


def _tuned(
    request: SweepRequest, earlier: EarlierSweep | None
) -> tuple[JobList, ChosenSuite | None, JobSource]:
    """Return the jobs that a tuned sweep has so far, its suite, and what makes the others."""
    if earlier is None:
        suite = request.composer.suite(request.overrides)
        jobs = _composed(request, request.overrides, suite)
        return JobList.whole([]), suite, new_source(request, jobs)
    recorded = earlier.jobs()
    if earlier.tune is None or recorded is None:
        what = "is not tuned" if earlier.tune is None else "has lost jobs.jsonl"
        raise UserError(
            f"{earlier.key}={earlier.folder}: that sweep {what}; start a new sweep: "
            f"{earlier.first_command}"
        )
    numbers = frozenset(job.number for job in recorded)
    job_list = JobList(recorded, numbers, before=len(recorded), recorded=len(recorded))
    return job_list, earlier.suite(), earlier_source(request, earlier)


def _composed(
    request: SweepRequest, typed: Sequence[str], suite: ChosenSuite | None
) -> list[SweepJob]:
    """Return the jobs that overrides stand for."""
    expanded, jobs = request.composer.expanded(typed, suite), list[SweepJob]()
    with LiveLine(quiet=QUIET_SECONDS) as line:
        for number, (texts, swept) in enumerate(expanded, 1):
            line.show(f"checking the jobs: {number - 1} of {len(expanded)}")
            jobs.append(request.composer.job(number, len(expanded), texts, swept))
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
    return make_folder(request.folder, "sweep", key="hydra.sweep.dir")
