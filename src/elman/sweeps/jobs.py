"""From the command of a sweep to its jobs: all of them composed and checked before one runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict, read_write

from elman.base.errors import UserError
from elman.base.live_line import QUIET_SECONDS, LiveLine
from elman.base.quoting import quoted
from elman.config.compose import compose_tree, typed_overrides
from elman.config.mistakes import explain_mistakes
from elman.config.ranks import Where, check_ranks, refuse_sweep_in_rank
from elman.config.run_config import MODES, Mode, RunConfig
from elman.config.suites import GROUP
from elman.launchers.job import SweepJob, refuse_shared, wants_gpu
from elman.runs.folder import check_free, claim_folder, make_folder, run_name
from elman.runs.prepare import checked_config
from elman.sections.launching import GpusLauncher, SlurmLauncher, SweepSettings, ranks_of
from elman.sweeps.composing import JobComposer
from elman.sweeps.expand import expand
from elman.sweeps.files_read import files_notes
from elman.sweeps.grow import (
    Grown,
    asked_jobs,
    check_unchanged,
    grown_jobs,
    is_grown,
    nothing_to_add,
    prefixes,
)
from elman.sweeps.resume import check_same, read_sweep
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
class CheckedSweep:
    """A sweep whose jobs are checked, and that may begin.

    Args:
        settings: Its own settings.
        grown: Its jobs, and which of them the command asks for.
        mode: The mode of its jobs.
        folder: Its folder; None if its mode makes none, or with ``sweep.dry_run``.
        earlier: Content of the ``sweep.json`` that it goes on with, or None.
        suite: The suite, or None.
        arguments: The overrides that its jobs come from.
        added: The overrides that add new jobs to the earlier sweep; empty if there are none.
        claimed: Overrides that were typed about the models' sizes.
        said: Notes for the reader.
    """

    settings: SweepSettings
    grown: Grown
    mode: Mode
    folder: Path | None
    earlier: dict[str, Any] | None
    suite: ChosenSuite | None
    arguments: Sequence[str]
    added: Sequence[str]
    claimed: Sequence[str]
    said: Sequence[str]

    @property
    def jobs(self) -> list[SweepJob]:
        """All jobs."""
        return self.grown.jobs

    @property
    def adds(self) -> bool:
        """Whether the command is to add jobs to the earlier sweep."""
        return self.settings.sweep.add is not None


def checked_sweep(
    context: HydraContext, config: DictConfig, overrides: Sequence[str]
) -> CheckedSweep:
    """Make the jobs of a sweep, check all of them, and make the sweep's folder.

    Args:
        context: Hydra's context, which composes.
        config: The composed tree; it gets the folder.
        overrides: The command's overrides, without those of Hydra's own settings.

    Raises:
        UserError: a job is wrong, or the launcher could not start it.
    """
    refuse_sweep_in_rank()
    _refuse_run_dir(config)
    settings = sweep_settings(config)
    earlier = _earlier(settings)
    _refuse_swept_settings(context, overrides)
    typed = without_sweep_settings(overrides)
    adds = settings.sweep.add is not None
    if adds and not typed:
        raise UserError(nothing_to_add(str(settings.sweep.add)))
    of_jobs = (typed if not adds else []) or (earlier["arguments"] if earlier else [])
    suite = _suite(context, config, of_jobs)
    claimed = claims(overrides, earlier["claims"] if earlier else ())
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
    _refuse_shared(grown.asked, suite, settings)
    said += _check_launcher(config, grown.asked, mode, settings)
    said += slow_paths(suite, grown.asked, settings.launcher)
    said += files_notes(grown.asked, mode)
    jobs, folder = _with_folders(config, grown.jobs, mode, settings, prefixes(earlier))
    grown = replace(grown, jobs=jobs)
    if earlier is not None and folder is not None:
        said += _check_taken_up(folder, earlier, grown, settings)
    added = typed if adds and grown.new else []
    return CheckedSweep(
        settings, grown, mode, folder, earlier, suite, of_jobs, added, claimed, said
    )


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
    resumed, grown = settings.sweep.resume, settings.sweep.add
    named = resumed if resumed is not None else grown
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
    with explain_mistakes(claimed, compose_tree):
        tree = context.config_loader.load_sweep_config(config, [*chosen, *claimed])
    return claiming(settings, tree)


def _sizes(grown: Grown, settings: SweepSettings) -> list[str]:
    """Build every model without memory; return the notes about their sizes."""
    jobs = grown.jobs
    if MODES[jobs[0].config.mode].in_process or not builds_a_model(jobs[0].config):
        return []
    known: dict[str, int] = {}
    params: list[int] = []
    with LiveLine(quiet=QUIET_SECONDS) as line:
        for job in jobs:
            line.show(f"building the models of the jobs: {len(params)} of {len(jobs)}")
            with _named(job.number, len(jobs), job.swept or job.overrides):
                params.append(count_params(job.config, known))
                check_countable(job.config, known)
    compares = MODES[jobs[0].config.mode].compares
    note = spread_note(jobs, params, settings.sweep) if compares else None
    lines = size_lines(jobs, params)
    asked = [line for job, line in zip(jobs, lines, strict=True) if job.number in grown.wanted]
    return asked + ([note] if note else [])


def _refuse_shared(
    jobs: Sequence[SweepJob], suite: ChosenSuite | None, settings: SweepSettings
) -> None:
    """Refuse that jobs share GPUs where speeds count."""
    if not isinstance(settings.launcher, GpusLauncher):
        return
    number = settings.launcher.jobs_per_gpu
    if number > 1 and suite is not None and suite.config.claims_speed:
        raise UserError(
            f"launcher.jobs_per_gpu={number}: {GROUP}={suite.name} compares speeds, and jobs on "
            "one GPU slow each other down; type launcher.jobs_per_gpu=1"
        )
    for job in jobs:
        refuse_shared(number, job.config)


def _check_launcher(
    config: DictConfig, jobs: Sequence[SweepJob], mode: Mode, settings: SweepSettings
) -> list[str]:
    """Refuse what the launcher would refuse, before there is a folder; return its notes."""
    if not jobs:
        return []
    for job in jobs:
        check_ranks(job.config, Where.LAUNCHER, ranks_of(settings.launcher))
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
    with explain_mistakes(arguments, compose_tree):
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
    with explain_mistakes(arguments, compose_tree):
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
    with explain_mistakes(arguments, compose_tree):
        expanded = expand_suite(suite, overrides, parser) if suite else expand(overrides)
    jobs, composer = [], JobComposer(context, config)
    with LiveLine(quiet=QUIET_SECONDS) as line:
        for number, (texts, swept) in enumerate(expanded, 1):
            line.show(f"checking the jobs: {number - 1} of {len(expanded)}")
            with _named(number, len(expanded), swept or texts):
                typed = _checked(composer, texts, may_pack)
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

    composer = JobComposer(context, config)

    def compose(number: int, total: int, texts: Sequence[str]) -> RunConfig:
        with _named(number, total, texts):
            return _checked(composer, texts, may_pack)

    def of_suite() -> list[tuple[str, ...]]:
        keys = {text.partition("=")[0] for text in typed}
        own = [text for text in earlier["arguments"] if text.partition("=")[0] not in keys]
        chosen = _suite(context, config, [*own, *typed])
        assert chosen is not None
        parser, overrides = _parsed(context, [*own, *typed])
        return [texts for texts, _ in expand_suite(chosen, overrides, parser)]

    if not typed:  # it is resumed
        return Grown.whole(grown_jobs(earlier, (), compose).jobs)
    with explain_mistakes(typed, compose_tree):
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


def _checked(composer: JobComposer, overrides: Sequence[str], may_pack: bool) -> RunConfig:
    with explain_mistakes(overrides, composer.whole):
        typed = checked_config(composer.tree(overrides), may_pack=may_pack)
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
