"""What one command asks of a sweep: made once from Hydra's tree, which nobody reads later."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from elman.base.errors import UserError
from elman.base.quoting import as_override
from elman.config.compose import typed_overrides
from elman.config.keys import named_keys
from elman.config.run_config import Mode
from elman.launchers.command import OF_THE_SWEEP, Start
from elman.runs.prepared import PreparedRun
from elman.sections.launching import LauncherConfig, SweepSettings
from elman.sweeps.composing import JobComposer
from elman.sweeps.row import PrintTable
from elman.sweeps.settings import (
    claims,
    is_of_tuning,
    sweep_settings,
    without_sweep_settings,
)


@dataclass(frozen=True)
class LauncherChoice:
    """The launcher of a command.

    Args:
        name: The choice of group ``launcher``.
        overrides: Overrides that choose it with exactly its settings.
        save_seconds: How long before its limit a cluster tells a job to save; None elsewhere.
        load: Returns Hydra's launcher, given the sweep's folder.
        hydras: The choice of group ``hydra/launcher`` if it is one of Hydra's own launchers, which
            take a list of jobs and ask for no more; else None.
    """

    name: str
    overrides: tuple[str, ...]
    save_seconds: int | None
    load: Callable[[Path | None], Launcher]
    hydras: str | None = None


@dataclass(frozen=True)
class SweepRequest:
    """One command that asks for a sweep, with the functions that the sweep borrows from it.

    Args:
        settings: Groups ``launcher`` and ``sweep``.
        overrides: Its overrides for the jobs.
        claims: Its overrides about the sizes of the models.
        argv: The whole command as typed, without the program's name.
        config_flags: Its flags that say where YAML files are found.
        typed: The keys that it names.
        hydra: Its overrides of Hydra's own settings that the jobs need too.
        folder: Where the sweep's folder is made, or the folder itself if it was typed.
        folder_typed: Whether it was typed, as ``hydra.sweep.dir``.
        launcher: Its launcher.
        composer: Composes its jobs; a dry run packs no data.
        start: Runs a command line; the process of each job calls it.
        run: Runs a prepared job in this process.
        table_of: Returns the function that prints the table of a mode.
        started: When the command began.
        tune_choice: The choice of group ``tune``; empty if nothing is tuned.
        tune_texts: Its overrides of group ``tune``.
    """

    settings: SweepSettings
    overrides: tuple[str, ...]
    claims: tuple[str, ...]
    argv: tuple[str, ...]
    config_flags: tuple[str, ...]
    typed: frozenset[str]
    hydra: tuple[str, ...]
    folder: Path
    folder_typed: bool
    launcher: LauncherChoice
    composer: JobComposer
    start: Start
    run: Callable[[PreparedRun], int]
    table_of: Callable[[Mode], PrintTable]
    started: datetime
    tune_choice: str = ""
    tune_texts: tuple[str, ...] = ()


def sweep_request(
    context: HydraContext,
    task: TaskFunction,
    tree: DictConfig,
    overrides: Sequence[str],
    *,
    argv: Sequence[str],
    config_flags: tuple[str, ...],
    start: Start,
    run: Callable[[PreparedRun], int],
    table_of: Callable[[Mode], PrintTable],
) -> SweepRequest:
    """Return what a command asks for.

    Args:
        context: Hydra's context, which composes.
        task: Hydra's task function, for Hydra's own launchers.
        tree: The composed tree.
        overrides: The command's overrides, without those of Hydra's own settings.
        argv: As in :class:`SweepRequest`, like the rest.
        config_flags: As there.
        start: As there.
        run: As there.
        table_of: As there.

    Raises:
        UserError: a setting of the sweep is wrong.
    """
    of_hydra = typed_overrides(tree, "hydra")
    if any(text.startswith("hydra.run.dir=") for text in of_hydra):
        raise UserError("hydra.run.dir: every job would share it; with -m type hydra.sweep.dir=...")
    settings = sweep_settings(tree)
    composer = JobComposer(context, tree, may_pack=not settings.sweep.dry_run)
    tune_texts = tuple(text for text in overrides if is_of_tuning(text))
    composer.refuse_swept_settings(overrides)
    return SweepRequest(
        settings=settings,
        overrides=tuple(without_sweep_settings(overrides)),
        claims=tuple(claims(overrides)),
        argv=tuple(argv),
        config_flags=config_flags,
        typed=named_keys(typed_overrides(tree, "task")),
        hydra=tuple(text for text in of_hydra if not OF_THE_SWEEP.match(text)),
        folder=Path(str(tree.hydra.sweep.dir)),
        folder_typed=any(text.startswith("hydra.sweep.dir=") for text in of_hydra),
        launcher=_launcher(context, task, tree, settings.launcher, of_hydra),
        composer=composer,
        start=start,
        run=run,
        table_of=table_of,
        started=datetime.now().astimezone(),
        tune_choice=str(tree.hydra.runtime.choices.get("tune") or ""),
        tune_texts=tune_texts,
    )


def _launcher(
    context: HydraContext,
    task: TaskFunction,
    tree: DictConfig,
    settings: LauncherConfig,
    of_hydra: Sequence[str],
) -> LauncherChoice:
    name = str(tree.hydra.runtime.choices["launcher"])
    used = str(tree.hydra.runtime.choices["hydra/launcher"])
    overrides = [text for text in of_hydra if re.match(r"hydra[./]launcher\b", text)]
    is_own = used.startswith("elman_")
    if is_own:
        own = settings.model_dump(exclude={"name"})
        values = [f"launcher.{key}={as_override(value)}" for key, value in own.items()]
        overrides = [f"launcher={name}", *values, *overrides]

    def load(folder: Path | None) -> Launcher:
        if folder is not None:
            with read_write(tree.hydra), open_dict(tree.hydra), read_write(tree.hydra.sweep):
                tree.hydra.sweep.dir = str(folder)
        return Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=tree
        )

    delay = tree.hydra.launcher.get("signal_delay_s")
    seconds = None if delay is None else int(delay)
    return LauncherChoice(name, tuple(overrides), seconds, load, None if is_own else used)
