"""Reads one run: ``result.json``, ``config.yaml``, and its entry in ``sweep.json``."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from elman.base import run_files
from elman.base.errors import RunStatus
from elman.base.quoting import pasteable
from elman.base.seals import file_is_changed, text_is_changed, tree_is_changed
from elman.base.yaml_file import parsed_yaml
from elman.evaluation.metrics import METRICS_VERSION
from elman.report.metrics_file import Metrics, read_metrics
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED, runs_in

DAMAGED = "damaged"
_CHANGED = "changed after the run wrote it (it has another sha256)"
CHANGED_RESULT = (
    f"{_CHANGED}, so the run does not count; put the file back, or remove its digests to use it as "
    "it is"
)
CHANGED_CONFIG = f"{_CHANGED}: the run may have had other settings than its row says"
"""What a report says of files that were edited or damaged."""


def _finite(value: Any) -> Any:
    """Return a number, or None if it is not finite: JSON has no such numbers, Python reads them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _known_status(value: Any) -> Any:
    if value not in set(RunStatus):
        words = ", ".join(status.value for status in RunStatus)
        raise ValueError(f"{value!r} is not a status; a run ends with one of {words}")
    return value


Number = Annotated[float | None, BeforeValidator(_finite)]
Whole = Annotated[int | None, BeforeValidator(_finite)]


class _Part(BaseModel):
    """The part of an object in ``result.json`` that a report reads; the rest is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Seconds(_Part):
    """Times of a run."""

    train: Number = None
    validation: Number = None
    checkpoint: Number = None


class DataRead(_Part):
    """The bytes that a run was trained on."""

    paths: list[str] = []
    bytes: Whole = None
    sha256: str | None = None
    sample_sha256: str | None = None
    val_bytes: Whole = None
    task: str | None = None
    chance: Number = None
    chance_by_length: dict[str, Number] = {}


class Environment(_Part):
    """Where a run ran."""

    device_name: str | None = None
    elman: str | None = None
    device: str | None = None
    revision: str | None = None
    packages: dict[str, str | None] = {}


class Result(_Part):
    """The part of ``result.json`` that a report reads; elman.evaluation.metrics defines it."""

    status: Annotated[str, BeforeValidator(_known_status)]
    error: str | None = None
    ended: str | None = None
    model: str | None = None
    metrics_version: Whole = None
    params: Whole = None
    backend: str | None = None
    path: str | None = None
    slow_path: bool | None = None
    graph: bool | None = None
    matrix_precision: str | None = None
    contended: bool | None = None
    jobs_per_gpu: Whole = None
    steps: Whole = None
    tokens: Whole = None
    flops: Number = None
    flops_per_byte: Number = None
    loss: Number = None
    loss_steps: Whole = None
    bpb: Number = None
    val_bpb: Number = None
    accuracy: Number = None
    accuracy_by_length: dict[str, Number] = {}
    tok_s: Number = None
    peak_memory_bytes: Number = None
    seconds: Seconds = Seconds()
    data: DataRead = DataRead()
    environment: Environment = Environment()


@dataclass(frozen=True)
class Run:
    """One run, or a job of a sweep that has not started a run.

    Args:
        folder: Its run folder; None if it has none yet.
        name: Its name among the others: the folder's name, or the job's number.
        model: Name of its model, or a word if it is unknown.
        status: How it ended, in a word or two.
        reason: Why, if it did not end well; empty if unknown.
        result: Its result; None if there is no file, or it cannot be read.
        config: Its resolved configuration, or None.
        job: Its number in its sweep, from 1.
        seed: Its ``train.seed``, if known.
        overrides: The overrides of its job in a sweep.
        swept: The overrides that distinguish it from the other jobs.
        problems: What could not be read, one line each.
        metrics: What it recorded step by step; None if it never began.
    """

    folder: Path | None
    name: str
    model: str
    status: str
    reason: str = ""
    result: Result | None = None
    config: Mapping[str, Any] | None = None
    job: int | None = None
    seed: int | None = None
    overrides: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    metrics: Metrics | None = field(default=None, repr=False, compare=False)

    @property
    def counts(self) -> bool:
        """Whether its numbers may enter a mean: it ended well, by definitions known here."""
        result = self.result
        return self.status == RunStatus.OK and result is not None and self.version_is_known

    @property
    def resumed(self) -> bool:
        """Whether it was stopped and went on from a checkpoint."""
        return self.metrics is not None and any(step > 0 for step, _ in self.metrics.sessions)

    @property
    def version_is_known(self) -> bool:
        """Whether its numbers are defined as this version of the package defines them."""
        return self.result is None or self.result.metrics_version in (None, METRICS_VERSION)


def read_run(folder: Path, job: Mapping[str, Any] | None = None) -> Run:
    """Return the run in ``folder``; its ``problems`` tell what is wrong with its files.

    Args:
        folder: A run folder; that of a job need not exist.
        job: Its entry in ``sweep.json``; ``final``: when its sweep ended, empty if that is not
            recorded; ``watched``: its sweep runs.
    """
    job = job or {}
    result, problems, grown = _read_result(folder)
    config, more = _read_config(folder)
    damage = next(iter(problems), None)
    problems += [*more, *grown]
    status, reason = _end(folder, result, job)
    if result is not None and result.metrics_version not in (None, METRICS_VERSION):
        problems.append(
            f"metric version {result.metrics_version} is not known here (this is version "
            f"{METRICS_VERSION}): shown, but not in the means"
        )
    if result is not None and status == RunStatus.OK and config is None:
        problems.append(f"no {run_files.CONFIG}: unknown what it is comparable with")
    began = result is not None or _there(folder / run_files.METRICS)
    metrics = read_metrics(folder) if began else None
    problems += metrics.problems if metrics else ()
    number = job.get("number")
    return Run(
        folder=folder,
        name=folder.name,
        model=_model(folder, result, config, job),
        status=DAMAGED if damage else status,
        reason=damage or reason,
        result=result,
        config=config,
        job=number if isinstance(number, int) else None,
        seed=_seed(config, job),
        overrides=_overrides(job),
        swept=tuple(map(str, job.get("swept") or ())),
        problems=tuple(problems),
        metrics=metrics,
    )


def _overrides(job: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(str(job.get("command", "")))[1:])
    except ValueError:
        return ()


def _end(folder: Path, result: Result | None, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return how a run ended and why: by its own files and lock, or else by its sweep's record."""
    seen = str(job.get("status") or "")
    if result is None or result.status != RunStatus.OK:
        given = seen == RUNNING
        process = runs_in(folder, run_files.RESULT) if given or _begun(folder) else None
        if process is not None:
            return RUNNING, f"process {process} runs in it"
        if given and result is None and job.get("watched"):
            return RUNNING, "it has a place"
    if result is not None:
        return _with_result(result, seen, job)
    if seen == RunStatus.OK:
        return DAMAGED, f"no {run_files.RESULT}, though its sweep saw it end well"
    return _without_result(folder, seen, job)


def _with_result(result: Result, seen: str, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return how a run with a result ended, if its sweep may have seen another end."""
    own, error = result.status, result.error or ""
    if job.get("reason") and own == RunStatus.INTERRUPTED:
        return seen, str(job["reason"])  # its scheduler stopped it, and it saved
    ended = seen and seen not in (NOT_STARTED, RUNNING, UNFINISHED)
    if not ended or not job.get("final") or seen == own:
        return own, error
    if _is_later(result.ended, job["final"]):
        after = f"its sweep had ended before and saw: {seen}"
        return own, "; ".join(filter(None, (error, after)))
    if own == RunStatus.OK:
        return own, f"its process ended as {seen} after it had written its result"
    # The process left no result of its own, or one that could not know why it ended.
    told = f"its result says {own}" + (f": {error}" if error else "")
    return seen, "; ".join(filter(None, (str(job.get("reason") or ""), told)))


def _is_later(one: str | None, other: str) -> bool:
    """Whether a recorded time is after another; times that cannot be read are not."""
    try:
        return datetime.fromisoformat(one or "") > datetime.fromisoformat(other)
    except (ValueError, TypeError):
        return False


def _without_result(folder: Path, seen: str, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return the state of a run without a result in whose folder no process runs."""
    if seen and seen not in (NOT_STARTED, RUNNING, UNFINISHED):
        return seen, str(job.get("reason") or "")
    if _begun(folder):
        # A job of a sweep is resumed through its sweep.
        more = "" if seen else f"; to resume it: elman {pasteable('train.resume', str(folder))}"
        return UNFINISHED, f"no {run_files.RESULT}: it was killed before it could write one{more}"
    if seen == RUNNING:
        return UNFINISHED, "it had a place, and was killed before it began"
    return (NOT_STARTED, "") if seen else (UNFINISHED, f"no {run_files.RESULT}")


def _begun(folder: Path) -> bool:
    return _there(folder / run_files.CONFIG) or _there(folder / run_files.METRICS)


def _there(path: Path) -> bool:
    """Whether the file exists, or may not be looked up: reading it then reports the problem."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _read_result(folder: Path) -> tuple[Result | None, list[str], list[str]]:
    """Return a result, what is wrong with it, and what is wrong with the file that it knows."""
    path = folder / run_files.RESULT
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None, [], []
    except OSError as error:
        return None, [f"{run_files.RESULT}: cannot be read ({error.strerror})"], []
    try:
        tree = json.loads(text)
        found = Result.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        return None, [f"{run_files.RESULT}: {place}: {first['msg'].lower()}"], []
    except (ValueError, RecursionError):
        return None, [f"{run_files.RESULT}: not whole JSON ({len(text):,} bytes)"], []
    problems = [f"{run_files.RESULT}: {CHANGED_RESULT}"] if tree_is_changed(tree) else []
    return found, problems, [*_grown(tree, folder / run_files.METRICS)]


def _grown(tree: Any, path: Path) -> Iterator[str]:
    """Yield a line if a file is not what it was when a result was written, but for new lines."""
    with suppress(OSError):  # who reads it says so
        if file_is_changed(tree, path):
            yield f"{path.name}: {_CHANGED}: see its curve"


def _read_config(folder: Path) -> tuple[Mapping[str, Any] | None, list[str]]:
    try:
        text = (folder / run_files.CONFIG).read_bytes()
        tree = parsed_yaml(text)
    except (FileNotFoundError, NotADirectoryError):
        return None, []
    except OSError as error:
        return None, [f"{run_files.CONFIG}: cannot be read ({error.strerror})"]
    except (yaml.YAMLError, ValueError, RecursionError):
        return None, [f"{run_files.CONFIG}: not valid YAML"]
    sections = isinstance(tree, dict) and all(
        isinstance(part, dict) for part in map(tree.get, ("model", "data", "train", "optim"))
    )
    if not sections:
        return None, [f"{run_files.CONFIG}: not the configuration of a run"]
    return tree, [f"{run_files.CONFIG}: {CHANGED_CONFIG}"] if text_is_changed(text) else []


def _model(
    folder: Path, result: Result | None, config: Mapping[str, Any] | None, job: Mapping[str, Any]
) -> str:
    named = [result.model if result else None, config["model"].get("name") if config else None]
    return next((str(name) for name in (*named, job.get("model")) if name), folder.name)


def _seed(config: Mapping[str, Any] | None, job: Mapping[str, Any]) -> int | None:
    seed = config["train"].get("seed") if config else job.get("seed")
    return seed if isinstance(seed, int) else None


def task_of(run: Run) -> str:
    """Return the task that a run learned; empty for text, or if it is unknown."""
    data = (run.config or {}).get("data")
    task = data.get("task") if isinstance(data, Mapping) else None
    return str(task) if task is not None else ""


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run of ``mode=train``."""
    if any((folder / name).is_file() for name in (run_files.RESULT, run_files.METRICS)):
        return True
    return _mode(folder) == "train"


def _mode(folder: Path) -> str | None:
    config, _ = _read_config(folder)
    return str(config.get("mode")) if config else None
