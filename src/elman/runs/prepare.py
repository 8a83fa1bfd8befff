"""Turns Hydra's composed tree into a job that is ready to run: validated, checked, with a folder.

Imports no torch: it finds every mistake that a user can have typed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from elman.base import run_files
from elman.base.disk import no_room
from elman.base.errors import UserError
from elman.base.rank_place import RankPlace, rank_place
from elman.base.whole_file import keep_room
from elman.bench.entries import benched_models
from elman.config.catalog import Place, search_overrides
from elman.config.compose import plain_tree, typed_config, typed_overrides
from elman.config.keys import named_keys
from elman.config.ranks import Where, check_ranks
from elman.config.run_config import MODES, OF_SWEEPS, RunConfig
from elman.config.suites import GROUP
from elman.data.matching import anchored, anchored_tokenizer
from elman.runs.folder import (
    RunLock,
    check_free,
    claim_folder,
    discard_folder,
    make_folder,
    run_name,
)
from elman.runs.held_log import HeldFileHandler, release
from elman.runs.prepared import PreparedRun
from elman.runs.recorded_job import put_config, recorded_job
from elman.runs.resume import is_resume, resumed_config, resumed_folder
from elman.sections.training import DataConfig
from elman.training.trackio_writer import check_installed
from elman.training.weights_and_biases import check_access

_SILENT_LOG: dict[str, Any] = {"version": 1, "root": None, "disable_existing_loggers": False}


def checked_config(tree: DictConfig, *, may_pack: bool = True) -> RunConfig:
    """Return the typed configuration of a composed tree after every check that needs no torch.

    Args:
        tree: The tree.
        may_pack: Whether data that must be packed is packed now; else it is only checked.

    Raises:
        UserError: a setting is wrong, or a file or package that it names does not exist.
    """
    config = composed_config(tree)
    if is_resume(config):
        named = named_keys(typed_overrides(tree, "task"))
        config = resumed_config(config, plain_tree(tree, _model_name(tree)), named)
    return with_files(tree, config, may_pack=may_pack)


def composed_config(tree: DictConfig) -> RunConfig:
    """Return the typed configuration of a composed tree; nothing that it names is looked up.

    Raises:
        UserError: a setting is wrong.
    """
    named = named_keys(typed_overrides(tree, "task"))
    try:
        return typed_config(tree, _model_name(tree), named)
    except UserError as error:
        raise UserError(_with_place(str(error), named, tree.hydra.runtime.choices)) from None


def _model_name(tree: DictConfig) -> str:
    return str(tree.hydra.runtime.choices["model"])


def with_files(tree: DictConfig, config: RunConfig, *, may_pack: bool) -> RunConfig:
    """Return a configuration with absolute paths, after a check of the files that it names.

    Args:
        tree: Its composed tree.
        config: The configuration.
        may_pack: Whether data that must be packed is packed now; else it is only checked.

    Raises:
        UserError: a file or package does not exist.
    """
    check_files(config, may_pack=may_pack)
    if config.bench is not None:
        benched_models(config, search_overrides(config_places(tree)))
    return _anchored(config, changes_folder=bool(tree.hydra.job.chdir))


def _with_place(line: str, named: frozenset[str], choices: Mapping[str, Any]) -> str:
    """Add the file in which a wrong setting stands, if the user did not type the setting."""
    # A value may have colons itself, as {'0': {'cell': 'e1'}} has.
    match = re.match(r"((\w+)\.\w+)(=.*?(?=: [a-z])|=[^:]*)?", line)
    if match is None or match[2] not in choices:
        return line
    if any(name == match[1] or name.startswith(f"{match[1]}.") for name in named):
        return line
    return f"{match[0]} (in {match[2]}={choices[match[2]]}){line[match.end() :]}"


def prepare(tree: DictConfig) -> PreparedRun:
    """Check a composed job, make its folder and point Hydra there."""
    HydraConfig.instance().set_config(tree)
    place = rank_place()
    if not place.leads:
        return _follower(tree, place)
    config = checked_config(tree)
    check_ranks(config, Where.PROCESS, place.size)
    run_dir = _named_run_dir(tree)
    if not MODES[config.mode].makes_folder:
        if run_dir is not None:
            raise UserError(f"hydra.run.dir: mode={config.mode} makes no run folder; drop it")
        _point_hydra(tree, Path(), output_subdir=None, silent=True)
        return without_folder(tree, config)
    if is_resume(config):
        return _resumed(tree, config, run_dir, place)
    if run_dir is not None:
        folder = claim_folder(Path(run_dir), "hydra.run.dir", config)
    else:
        folder = make_folder(Path(str(tree.hydra.run.dir)), run_name(config))
    _point_hydra(tree, folder, output_subdir=tree.hydra.output_subdir)
    lock = _taken(folder, MODES[config.mode].result_file)
    return PreparedRun(config, folder, lock, places=config_places(tree), place=place)


def _follower(tree: DictConfig, place: RankPlace) -> PreparedRun:
    """Check the job of a rank that does not lead: it makes no folder and writes no file."""
    config = checked_config(tree, may_pack=False)  # rank 0 packs
    check_ranks(config, Where.PROCESS, place.size)
    _point_hydra(tree, Path(), output_subdir=None, silent=True)
    return PreparedRun(config, place=place)


def without_folder(tree: DictConfig, config: RunConfig) -> PreparedRun:
    """Return a job whose mode makes no folder, with what the command says beside its settings."""
    suite = tree.hydra.runtime.choices.get(GROUP)
    return PreparedRun(
        config,
        overrides=job_overrides(tree),
        places=config_places(tree),
        suite=None if suite is None else str(suite),
    )


def job_overrides(tree: DictConfig) -> tuple[str, ...]:
    """Return the overrides of a composed job as typed, with those that locate its YAML files."""
    search = [text for text in typed_overrides(tree, "hydra") if "hydra.searchpath=" in text]
    return (*typed_overrides(tree, "task"), *search)


def config_places(tree: DictConfig) -> list[Place]:
    """Return the places where the YAML files of a composed tree were found."""
    return [(str(one.schema), str(one.path)) for one in tree.hydra.runtime.config_sources]


def _resumed(
    tree: DictConfig, config: RunConfig, run_dir: str | None, place: RankPlace
) -> PreparedRun:
    if run_dir is not None:
        raise UserError("hydra.run.dir: train.resume continues in the run's own folder; drop it")
    folder = resumed_folder(config)
    lock = _locked(folder)
    put_config(tree, config)
    # Hydra writes before the mode knows whether the run can continue; we write afterwards.
    _point_hydra(tree, folder, output_subdir=None)
    log = OmegaConf.select(tree, "hydra.job_logging.handlers.file")
    if log is not None:
        with read_write(tree.hydra), open_dict(tree.hydra):
            log["class"] = f"{HeldFileHandler.__module__}.{HeldFileHandler.__name__}"
    before = deepcopy(tree)
    return PreparedRun(
        config,
        folder,
        lock,
        resumed=True,
        on_taken_up=lambda: _note_resume(before, folder),
        place=place,
    )


def _note_resume(tree: DictConfig, folder: Path) -> None:
    """Write what Hydra writes for a new run, under this session's number; open the log."""
    release()
    number = 1 + len(list((folder / run_files.HYDRA).glob("resume-*")))
    place = folder / run_files.HYDRA / f"resume-{number:03d}"
    place.mkdir(parents=True)
    parts = {
        "config": OmegaConf.masked_copy(tree, [str(key) for key in tree if key != "hydra"]),
        "hydra": HydraConfig.instance().cfg,
        "overrides": tree.hydra.overrides.task,
    }
    for name, part in parts.items():
        (place / f"{name}.yaml").write_text(OmegaConf.to_yaml(part), encoding="utf-8")


def _taken(folder: Path, result_name: str) -> RunLock:
    """Lock a new run's folder and reserve room for its result; a full disk leaves no folder."""
    lock = RunLock(folder)
    try:
        lock.acquire()
        keep_room(folder / result_name)
    except OSError as error:
        discard_folder(folder)
        lock.release()
        raise no_room(error, folder) from None
    return lock


def _locked(folder: Path) -> RunLock:
    lock = RunLock(folder)
    lock.acquire()
    return lock


def _named_run_dir(tree: DictConfig) -> str | None:
    """Return hydra.run.dir if the user named it."""
    typed = typed_overrides(tree, "hydra")
    named = any(text.startswith("hydra.run.dir=") for text in typed)
    return str(tree.hydra.run.dir) if named else None


def _point_hydra(
    tree: DictConfig, folder: Path, *, output_subdir: str | None, silent: bool = False
) -> None:
    """Tell Hydra where the job runs, so that Hydra's own files and log go there too.

    The configuration that Hydra writes leaves out settings that no job reads.
    """
    with read_write(tree), open_dict(tree):
        for name in (*OF_SWEEPS, GROUP):
            tree.pop(name, None)
    with read_write(tree.hydra), open_dict(tree.hydra):
        with read_write(tree.hydra.run):
            tree.hydra.run.dir = str(folder)
        tree.hydra.output_subdir = output_subdir
        if silent:
            tree.hydra.job_logging = OmegaConf.create(_SILENT_LOG)


def _anchored(config: RunConfig, *, changes_folder: bool) -> RunConfig:
    """Make the paths of the data absolute: a run may be resumed or evaluated from another folder.

    With ``hydra.job.chdir`` the run itself works in another folder: so does the other path then.
    """
    if changes_folder and config.train.init_from is not None:
        train = config.train.model_copy(update={"init_from": _absolute(config.train.init_from)})
        config = config.model_copy(update={"train": train})
    if not isinstance(config.data, DataConfig):
        return config
    paths = {"path": config.data.path, "val_path": config.data.val_path}
    absolute = {
        key: anchored(path) if isinstance(path, str) else [anchored(name) for name in path]
        for key, path in paths.items()
        if path is not None
    }
    tokenizer = anchored_tokenizer(config.data.tokenizer)
    data = config.data.model_copy(update={**absolute, "tokenizer": tokenizer})
    return config.model_copy(update={"data": data})


def _absolute(name: str) -> str:
    return os.path.abspath(os.path.expanduser(name)) if name else name


def check_files(config: RunConfig, *, may_pack: bool) -> None:
    """Refuse now what the mode would find missing only after it imports torch.

    Data that must be packed is packed here: before there is a folder, before torch takes its
    memory, and once for all jobs of a sweep, which would otherwise wait for it on their GPUs.
    """
    reads = MODES[config.mode].reads
    data = config.data
    if "data" in reads and isinstance(data, DataConfig) and _names_files(data):
        from elman.data.text import check_data

        check_data(data, config.train.chunk_size, may_pack=may_pack)
    if "log" in reads:
        check_access(config.log)
        check_installed(config.log)
    places = {
        "train.init_from": config.train.init_from if "train" in reads else None,
        "eval.checkpoint": config.eval.checkpoint if config.eval else None,
        "generate.checkpoint": config.generate.checkpoint if config.generate else None,
        "probe.checkpoint": config.probe.checkpoint if config.probe else None,
    }
    for key, place in places.items():
        if place is not None and not Path(place).expanduser().exists():
            raise UserError(
                f"{key}={place}: no such folder; name a run folder (outputs/...) or a checkpoint"
            )


def _names_files(data: DataConfig) -> bool:
    """Whether someone said what to read; an empty list, too, which is refused."""
    return data.path is not None or data.val_path is not None


def prepare_inside(sections: DictConfig) -> PreparedRun:
    """Prepare a job inside Hydra's own job runner, which has already made its folder.

    Hydra's basic launcher and its cluster launchers call the task in this way.
    """
    hydra = HydraConfig.get()
    tree = sections.copy()
    with open_dict(tree):
        tree.hydra = hydra
    folder = Path(str(hydra.runtime.output_dir))
    if (job := recorded_job(folder)) is not None:
        put_config(tree, job.config)
    config = checked_config(tree)
    if not MODES[config.mode].makes_folder:
        return without_folder(tree, config)
    return PreparedRun(config, folder, _locked(folder))


def check_alone(tree: DictConfig, *, may_pack: bool = True) -> RunConfig:
    """Check a composed job that other processes will run, and make no folder for it.

    Args:
        tree: Its composed tree.
        may_pack: Whether data that must be packed is packed now; else it is only checked.

    Raises:
        UserError: a setting is wrong, or the named folder is taken.
    """
    HydraConfig.instance().set_config(tree)
    config = checked_config(tree, may_pack=may_pack)
    run_dir = _named_run_dir(tree)
    if run_dir is not None and not MODES[config.mode].makes_folder:
        raise UserError(f"hydra.run.dir: mode={config.mode} makes no run folder; drop it")
    if run_dir is not None:
        check_free(Path(run_dir), "hydra.run.dir")
    _point_hydra(tree, Path(), output_subdir=None, silent=True)
    return config
