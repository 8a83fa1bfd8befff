"""``jobs.jsonl`` in a sweep's folder: the configuration of every job, as it was composed.

One line for each job, added when the job is, before it can start. A line has a whole configuration,
or what differs from the last whole one before it: ``{"train.seed": 2, "model": {...}}``, where a
section stands whole if its keys are others. A job's process reads its own line, so a YAML file that
is edited while the sweep lasts changes none of its jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable, quoted, shell_line
from elman.base.rank_place import rank_place
from elman.config.compose import typed_overrides
from elman.config.keys import named_keys
from elman.config.run_config import MODES, RunConfig, flatten
from elman.config.validate import validate
from elman.runs.folder import run_name
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED, state

KEY = "sweep.job"
"""The setting by which a job's process is told to run a job as its sweep recorded it."""


@dataclass(frozen=True)
class RecordedJob:
    """A job as its sweep composed it.

    Args:
        overrides: The overrides that a user would type to run it alone.
        config: Its configuration.
        tuning: What it is in a tuned comparison; None in any other sweep.
    """

    overrides: tuple[str, ...]
    config: RunConfig
    tuning: Mapping[str, Any] | None = None


def record_jobs(folder: Path, jobs: Mapping[str, RecordedJob]) -> None:
    """Add jobs to the file of a sweep.

    Args:
        folder: The sweep's folder.
        jobs: The jobs by the names of their folders.

    Raises:
        OSError: the disk is full.
    """
    whole = [line["config"] for line in _lines(folder) if isinstance(line.get("config"), dict)]
    base = whole[-1] if whole else None
    texts = []
    for name, job in jobs.items():
        tree = flatten(job.config)
        line: dict[str, Any] = {"folder": name, "overrides": list(job.overrides)}
        line |= {} if job.tuning is None else {"tuning": dict(job.tuning)}
        line |= {"config": tree} if base is None else {"differs": _differences(base, tree)}
        base = tree if base is None else base
        texts.append(json.dumps(line))
    if texts:
        path = folder / run_files.SWEEP_JOBS
        # A line that was cut off must not take the next one along.
        cut_off = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as stream:
            stream.write("\n" * cut_off + "".join(f"{text}\n" for text in texts))


def recorded_jobs(folder: Path) -> dict[str, RecordedJob]:
    """Return the jobs that a sweep has recorded, by the names of their folders.

    A damaged line counts as none: a job's folder has the hash of its configuration in its name.
    """
    return dict(_read(folder, None))


def recorded_job(folder: Path) -> RecordedJob | None:
    """Return the job that has this folder, or None if its sweep has not recorded it."""
    return dict(_read(folder.parent, folder.name)).get(folder.name)


def take_recorded(tree: DictConfig) -> None:
    """Make a tree that was composed with ``sweep.job`` that of the job; leave any other as it is.

    It is then as if the job's overrides and its folder had been typed.

    Raises:
        UserError: no sweep has recorded such a job, it has begun before, or the command sets
            something for it.
    """
    named = OmegaConf.select(tree, KEY)
    if named is None:
        return
    own = sorted(named_keys(typed_overrides(tree, "task")) - {KEY})
    if own:
        raise UserError(f"{own[0]}: {KEY} runs a job as its sweep recorded it; drop one of them")
    folder = Path(str(named)).expanduser().absolute()
    job = recorded_job(folder)
    if job is None:
        raise UserError(
            f"{KEY}={folder}: no sweep has recorded such a job; name a folder that is in "
            f"{run_files.SWEEP_JOBS} of the sweep's folder"
        )
    if rank_place().leads:
        _refuse_begun(folder, job)
    put_config(tree, job.config)
    with read_write(tree), open_dict(tree), read_write(tree.hydra), open_dict(tree.hydra):
        tree.sweep.job = None
        tree.hydra.overrides.task = list(job.overrides)
        tree.hydra.overrides.hydra.append(f"hydra.run.dir={quoted(str(folder))}")
        tree.hydra.runtime.choices.model = job.config.model.name
        with read_write(tree.hydra.run):
            tree.hydra.run.dir = str(folder)


def _refuse_begun(folder: Path, job: RecordedJob) -> None:
    """Raise UserError if a job has a result, or another command goes on with it.

    A killed job of a mode without checkpoints begins anew in its folder.
    """
    mode = MODES[job.config.mode]
    found = state(folder, mode.result_file)
    trains = mode.result_file == run_files.RESULT
    if found == NOT_STARTED or (found == UNFINISHED and not trains):
        return
    number = folder.name.partition("_")[0].lstrip("0")
    if found == RUNNING:
        rest = "is running; wait for its end"
    elif found == RunStatus.OK or not trains:
        rest = (
            f"has run before ({found}); its result is {folder / mode.result_file}; to run it anew "
            f"in another folder, type {shell_line(['elman', *job.overrides])}"
        )
    else:
        rest = (
            f"has begun before ({found}); to go on with it, type elman "
            f"{pasteable('train.resume', str(folder))}"
        )
    raise UserError(f"{KEY}={folder}: job {number} of {folder.parent} {rest}")


def put_config(tree: DictConfig, config: RunConfig) -> None:
    """Put a configuration in the place of the sections that were composed."""
    with read_write(tree), open_dict(tree):
        for key, section in flatten(config).items():
            tree[key] = section


def _read(folder: Path, only: str | None) -> Iterator[tuple[str, RecordedJob]]:
    base: dict[str, Any] | None = None
    for line in _lines(folder):
        base = line.get("config", base)
        name = str(line.get("folder"))
        if base is None or (only is not None and name != only):
            continue
        with suppress(UserError, KeyError, TypeError, AttributeError):
            config = validate(_changed(base, line.get("differs", {})))
            if name.partition("_")[2] == run_name(config):
                yield name, RecordedJob(tuple(line["overrides"]), config, line.get("tuning"))


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a sweep's file that can be read."""
    try:
        texts = (folder / run_files.SWEEP_JOBS).read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return
    for text in texts:
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict):
                yield line


def _differences(base: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return by key what a configuration has in place of another one's; None for nothing."""
    differences: dict[str, Any] = {}
    for section in {**base, **tree}:
        old, new = base.get(section), tree.get(section)
        if _same(old, new):
            continue
        if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
            differences |= {f"{section}.{k}": v for k, v in new.items() if not _same(v, old[k])}
        else:
            differences[section] = new
    return differences


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same in the file: 1, 1.0 and true are not."""
    return json.dumps(one) == json.dumps(other)


def _changed(base: Mapping[str, Any], differs: Mapping[str, Any]) -> dict[str, Any]:
    tree = {key: dict(one) if isinstance(one, dict) else one for key, one in base.items()}
    for key, value in differs.items():
        section, dot, name = key.partition(".")
        if dot:
            tree[section][name] = value
        else:
            tree[section] = value
    return {key: one for key, one in tree.items() if one is not None}
