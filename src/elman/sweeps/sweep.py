"""``elman -m``: turns one command into jobs, checks all before the first runs, prints one table.

Expansion, checks and the table are here; the launcher decides how jobs are started.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from elman.base.errors import ExitStatus, UserError
from elman.base.output import keep_going
from elman.base.quoting import pasteable, quoted
from elman.base.rank_place import is_rank
from elman.config.compose import compose_tree, typed_overrides
from elman.config.run_config import MODES, Mode, RunConfig
from elman.config.suites import GROUP
from elman.config.wording import in_our_words
from elman.launchers.command import Start, job_command
from elman.launchers.job import SweepJob, refuse_ranks, wants_gpu
from elman.launchers.request import JobLauncher, LaunchRequest
from elman.runs.folder import (
    RunLock,
    check_free,
    claim_folder,
    discard_folder,
    make_folder,
    run_name,
)
from elman.runs.prepare import checked_config
from elman.runs.prepared import PreparedRun
from elman.runs.state import NOT_STARTED, read_result, state, still_running
from elman.runs.status import job_status
from elman.sections.launching import GpusLauncher, SlurmLauncher, SweepSettings, ranks_of
from elman.sweeps import in_process
from elman.sweeps.expand import expand
from elman.sweeps.grow import (
    Grown,
    asked_jobs,
    check_not_grown_meanwhile,
    check_unchanged,
    grown_jobs,
    is_grown,
    nothing_to_add,
    prefixes,
)
from elman.sweeps.living_page import living_page
from elman.sweeps.manifest import Record
from elman.sweeps.recorded_command import recorded_command
from elman.sweeps.resume import (
    SUBMITTED,
    check_same,
    goes_on_by,
    in_queue,
    read_sweep,
    recorded_tasks,
    unfinished,
)
from elman.sweeps.row import PrintTable, SweepRow
from elman.sweeps.settings import (
    claiming,
    claims,
    is_of_sweeps,
    refuse_in_process,
    sweep_settings,
    without_sweep_settings,
)
from elman.sweeps.sizes import (
    builds_a_model,
    check_countable,
    count_params,
    size_lines,
    spread_note,
)
from elman.sweeps.slow_paths import slow_paths
from elman.sweeps.suite_runs import ChosenSuite, chosen_suite, expand_suite


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
    _refuse_ranks()
    _refuse_run_dir(config)
    settings = sweep_settings(config)
    earlier = _earlier(settings)
    _refuse_swept_settings(context, command.overrides)
    typed = without_sweep_settings(command.overrides)
    adds = settings.sweep.add is not None
    if adds and not typed:
        raise UserError(nothing_to_add(str(settings.sweep.add)))
    of_jobs = (typed if not adds else []) or (earlier["arguments"] if earlier else [])
    suite = _suite(context, config, of_jobs)
    claimed = claims(command.overrides, earlier["claims"] if earlier else ())
    if earlier:
        settings = _claiming_anew(context, config, suite, claimed, settings)
    may_pack = not settings.sweep.dry_run  # a dry run writes nothing
    if earlier is not None and (adds or (is_grown(earlier) and not typed)):
        grown = _grown(context, config, earlier, typed, suite, may_pack)
    else:
        grown = Grown.whole(_checked_jobs(context, config, of_jobs, suite, may_pack))
    mode = _one_mode(grown.jobs)
    if mode.in_process:
        refuse_in_process(config, grown.jobs[0].config.mode)
    said = _sizes(grown, settings)
    said += _check_launcher(config, grown.asked, mode, settings)
    said += slow_paths(suite, grown.asked, settings.launcher)
    jobs, folder = _with_folders(config, grown.jobs, mode, settings, prefixes(earlier))
    grown = replace(grown, jobs=jobs)
    if earlier is not None and folder is not None:
        said += _check_taken_up(folder, earlier, grown, settings)
    if settings.sweep.dry_run:
        asked = grown.new if adds else grown.jobs
        commands = (job_command(config, job.overrides, command.config_flags) for job in asked)
        print(*said, *commands, sep="\n", flush=True)
        return ExitStatus.OK
    if folder is not None:
        keep_going()
    for line in said:
        print(line, flush=True)
    record = Record(
        folder,
        jobs,
        mode.result_file,
        of_jobs,
        claimed,
        suite,
        started,
        recorded_command(config, settings, earlier, command.argv, command.config_flags),
        recorded_tasks(earlier),
        _added(earlier, command, typed if adds and grown.new else [], started),
    )
    launch = _Launch(context, task, config, command, settings, record)
    with RunLock(folder) if folder is not None else nullcontext():
        if adds and earlier is not None and folder is not None:
            check_not_grown_meanwhile(folder, earlier)
        page = living_page(folder if jobs[0].config.mode == "train" else None)
        with _said_how_it_goes_on(folder, earlier is not None), page:
            rows, interrupted = _run(launch, grown, mode, earlier)
        record.end([row.status for row in rows])
    command.table_of(mode)(rows, [job.config for job in jobs], folder)
    failed = any(row.failed for row in rows)
    if folder is not None and failed:
        print(goes_on_by(folder), flush=True)
    if interrupted:
        return ExitStatus.INTERRUPTED
    return ExitStatus.FAILED if failed else ExitStatus.OK


def _refuse_ranks() -> None:
    if is_rank():
        raise UserError(
            "-m: a sweep starts the processes of its jobs itself, and here torchrun starts several "
            "of it; drop torchrun and add launcher.gpus_per_job=<GPUs of one job>"
        )


@contextmanager
def _said_how_it_goes_on(folder: Path | None, earlier: bool) -> Iterator[None]:
    """Say how to resume a sweep that an error ends; one that ran no job leaves no folder."""
    try:
        yield
    except BaseException as error:
        if folder is None:
            raise
        jobs = any(path.is_dir() and path.name != SUBMITTED for path in folder.iterdir())
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


def _earlier(settings: SweepSettings) -> dict[str, Any] | None:
    """Return the manifest of the sweep that is resumed or grown, or None."""
    resumed, grown = settings.sweep.resume, settings.sweep.add
    if settings.sweep.allow_changed_code and grown is None:
        raise UserError("sweep.allow_changed_code: read only with sweep.add; drop it")
    if resumed is not None and grown is not None:
        raise UserError(
            "sweep.add: does not go with sweep.resume; add the jobs first, and resume afterwards"
        )
    if (folder := _taken_up(settings)) is None:
        return None
    return read_sweep(folder, "sweep.resume" if grown is None else "sweep.add")


def _taken_up(settings: SweepSettings) -> Path | None:
    """Return the folder of the earlier sweep that this command goes on with, or None."""
    named = settings.sweep.resume or settings.sweep.add
    return Path(named).expanduser().absolute() if named is not None else None


def _check_taken_up(
    folder: Path, earlier: Mapping[str, Any], grown: Grown, settings: SweepSettings
) -> list[str]:
    """Refuse to go on with a sweep whose jobs are not those of before; return notes."""
    if settings.sweep.add is None:
        check_same(folder, earlier, grown.jobs)
        return []
    before = grown.jobs[: len(earlier["jobs"])]
    check_same(folder, earlier, before, "sweep.add")
    if not grown.asked:
        return []
    return check_unchanged(folder, earlier, before, settings.sweep.allow_changed_code)


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


def _claiming_anew(
    context: HydraContext,
    config: DictConfig,
    suite: ChosenSuite | None,
    claimed: Sequence[str],
    settings: SweepSettings,
) -> SweepSettings:
    """Return the settings of a resumed sweep, with the claim about sizes that it would make now.

    The command that resumes it names neither its suite nor its settings about sizes.
    """
    chosen = [f"{GROUP}={quoted(suite.name)}"] if suite is not None else []
    with in_our_words(claimed, compose_tree):
        tree = context.config_loader.load_sweep_config(config, [*chosen, *claimed])
    return claiming(settings, tree)


def _sizes(grown: Grown, settings: SweepSettings) -> list[str]:
    """Build every model without memory; return the notes about their sizes."""
    jobs = grown.jobs
    if MODES[jobs[0].config.mode].in_process or not builds_a_model(jobs[0].config):
        return []
    known: dict[str, int] = {}
    params = []
    for job in jobs:
        with _named(job.number, len(jobs), job.swept or job.overrides):
            params.append(count_params(job.config, known))
            check_countable(job.config, known)
    compares = MODES[jobs[0].config.mode].compares
    note = spread_note(jobs, params, settings.sweep) if compares else None
    lines = size_lines(jobs, params)
    asked = [line for job, line in zip(jobs, lines, strict=True) if job.number in grown.wanted]
    return asked + ([note] if note else [])


def _check_launcher(
    config: DictConfig, jobs: Sequence[SweepJob], mode: Mode, settings: SweepSettings
) -> list[str]:
    """Refuse what the launcher would refuse, before there is a folder; return its notes."""
    if not jobs:
        return []
    for job in jobs:
        refuse_ranks(ranks_of(settings.launcher), job.config)
    if isinstance(settings.launcher, GpusLauncher) and not mode.in_process:
        from elman.launchers.gpus.places import checked_gpus

        checked_gpus(settings.launcher, any(wants_gpu(job.config) for job in jobs))
    elif isinstance(settings.launcher, SlurmLauncher):
        from elman.launchers.slurm import limit_note, refuse_without_folder, refuse_without_slurm

        refuse_without_folder(jobs, mode)
        note = limit_note(jobs, settings.launcher, int(config.hydra.launcher.signal_delay_s))
        refuse_without_slurm()
        return [note] if note else []
    return []


def _refuse_run_dir(config: DictConfig) -> None:
    if any(text.startswith("hydra.run.dir=") for text in typed_overrides(config, "hydra")):
        raise UserError("hydra.run.dir: every job would share it; with -m type hydra.sweep.dir=...")


def _parsed(
    context: HydraContext, arguments: Sequence[str]
) -> tuple[OverridesParser, list[Override]]:
    with in_our_words(arguments, compose_tree):
        parser = OverridesParser.create(config_loader=context.config_loader)
        return parser, parser.parse_overrides(list(arguments))


def _refuse_swept_settings(context: HydraContext, arguments: Sequence[str]) -> None:
    """Refuse several values for a setting of the whole sweep, and settings of a single run."""
    for override in _parsed(context, arguments)[1]:
        key = override.get_key_element().lstrip("+~")
        if is_of_sweeps(key) and override.is_sweep_override():
            raise UserError(f"{override.input_line}: applies to the whole sweep; give one value")
        if key == "train.resume" and override.value() is not None:
            raise UserError(
                f"{override.input_line}: resumes one run, and this is a sweep; type elman -m "
                "sweep.resume=<folder of the sweep or suite>, or elman train.resume=<run folder> "
                "alone"
            )


def _suite(
    context: HydraContext, config: DictConfig, arguments: Sequence[str]
) -> ChosenSuite | None:
    """Return the suite of the sweep; a resumed one names it in its recorded overrides."""
    loader = context.config_loader
    with in_our_words(arguments, compose_tree):
        return chosen_suite(
            lambda chosen: loader.load_sweep_config(config, chosen),
            _parsed(context, arguments)[1],
            str(config.mode),
        )


def _checked_jobs(
    context: HydraContext,
    config: DictConfig,
    arguments: Sequence[str],
    suite: ChosenSuite | None,
    may_pack: bool,
) -> list[SweepJob]:
    parser, overrides = _parsed(context, arguments)
    with in_our_words(arguments, compose_tree):
        expanded = expand_suite(suite, overrides, parser) if suite else expand(overrides)
    jobs = []
    for number, (texts, swept) in enumerate(expanded, 1):
        with _named(number, len(expanded), swept or texts):
            typed = _checked(context, config, texts, may_pack)
        jobs.append(SweepJob(number, len(expanded), texts, swept, typed))
    return jobs


def _grown(
    context: HydraContext,
    config: DictConfig,
    earlier: Mapping[str, Any],
    typed: Sequence[str],
    suite: ChosenSuite | None,
    may_pack: bool,
) -> Grown:
    """Return the jobs that a grown sweep has recorded, with those that this command adds."""

    def compose(number: int, total: int, texts: Sequence[str]) -> RunConfig:
        with _named(number, total, texts):
            return _checked(context, config, texts, may_pack)

    def of_suite() -> list[tuple[str, ...]]:
        keys = {text.partition("=")[0] for text in typed}
        own = [text for text in earlier["arguments"] if text.partition("=")[0] not in keys]
        chosen = _suite(context, config, [*own, *typed])
        assert chosen is not None
        parser, overrides = _parsed(context, [*own, *typed])
        return [texts for texts, _ in expand_suite(chosen, overrides, parser)]

    if not typed:  # it is resumed
        return Grown.whole(grown_jobs(earlier, (), compose).jobs)
    with in_our_words(typed, compose_tree):
        asked = asked_jobs(earlier, _parsed(context, typed)[1], suite, of_suite)
    return grown_jobs(earlier, asked, compose)


@contextmanager
def _named(number: int, total: int, overrides: Sequence[str]) -> Iterator[None]:
    """Add to an error which job of the sweep it is about."""
    try:
        yield
    except UserError as error:
        label = " ".join(overrides)
        named = "" if str(error).startswith(label) else f" ({label})"
        raise UserError(f"job {number} of {total}{named}: {error}") from error


def _checked(
    context: HydraContext, config: DictConfig, overrides: Sequence[str], may_pack: bool
) -> RunConfig:
    loader = context.config_loader

    def compose(chosen: Sequence[str]) -> DictConfig:
        return loader.load_sweep_config(config, list(chosen))

    with in_our_words(overrides, compose):
        typed = checked_config(compose(overrides), may_pack=may_pack)
    if typed.train.resume is not None:
        raise UserError("train.resume: cannot be swept; resume each run by a command of its own")
    return typed


def _one_mode(jobs: Sequence[SweepJob]) -> Mode:
    """Return the mode of the jobs, which share one table."""
    names = list(dict.fromkeys(job.config.mode for job in jobs))
    if len(names) > 1:
        raise UserError(f"mode={','.join(names)}: a sweep has one mode; type a command for each")
    return MODES[names[0]]


def _with_folders(
    config: DictConfig,
    jobs: list[SweepJob],
    mode: Mode,
    settings: SweepSettings,
    given: Mapping[int, str],
) -> tuple[list[SweepJob], Path | None]:
    """Make the sweep's folder, if its mode has one, and name each job's folder in it.

    ``given`` has what the folders of earlier jobs begin with, by the jobs' numbers.
    """
    place = Path(str(config.hydra.sweep.dir))
    named = any(text.startswith("hydra.sweep.dir=") for text in typed_overrides(config, "hydra"))
    if not mode.makes_folder:
        if named:
            raise UserError(
                f"hydra.sweep.dir: mode={jobs[0].config.mode} makes no sweep folder; drop it"
            )
        return jobs, None
    if (taken := _taken_up(settings)) is not None:
        if named:
            key = "sweep.add" if settings.sweep.add is not None else "sweep.resume"
            raise UserError(f"hydra.sweep.dir: {key} continues in the sweep's own folder; drop it")
        folder = taken
    elif settings.sweep.dry_run:
        if named:
            check_free(place, "hydra.sweep.dir")
        return jobs, None
    else:
        folder = claim_folder(place, "hydra.sweep.dir") if named else make_folder(place, "sweep")
    with read_write(config.hydra), open_dict(config.hydra), read_write(config.hydra.sweep):
        config.hydra.sweep.dir = str(folder)
    width = max(2, len(str(len(jobs))))
    begun = {**{job.number: f"{job.number:0{width}d}" for job in jobs}, **given}
    return [
        replace(job, folder=folder / f"{begun[job.number]}_{run_name(job.config)}") for job in jobs
    ], folder


def _row(job: SweepJob, returned: JobReturn, result: dict[str, Any] | None, mode: Mode) -> SweepRow:
    """Return a job's line of the table; a job that did not start now may have begun before."""
    status = job_status(returned, result)
    if status == NOT_STARTED:
        status = state(job.folder, mode.result_file)
    return SweepRow(job.number, job.swept or job.overrides, status, result)
