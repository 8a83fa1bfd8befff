"""Reads one run, and says how it ended.

A run is its ``result.json``, ``config.yaml``, ``metrics.jsonl``, and its entry in ``sweep.json``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from elman.base import run_files
from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable
from elman.base.seals import file_is_changed, text_is_changed, tree_is_changed
from elman.base.yaml_file import parsed_yaml
from elman.evaluation.result import METRICS_VERSION, RunResult
from elman.report.comparison.per_byte import bytes_per_token, metrics_per_byte, result_per_byte
from elman.report.metrics_file import Metrics, read_metrics
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED, runs_in
from elman.sections.training import BYTES

DAMAGED = "damaged"
WAITS = (NOT_STARTED, UNFINISHED)
"""The states of a job of a running sweep that is to come."""
NOT_ENDED = (RUNNING, *WAITS)
_SHOWN_HASH = 8
"""Digits of the hash of a tokenizer: many files are called tokenizer.json."""
_CHANGED = "changed after the run wrote it (it has another sha256)"
CHANGED_RESULT = (
    f"{_CHANGED}, so the run does not count; put the file back, or remove its digests to use it as "
    "it is"
)
CHANGED_CONFIG = f"{_CHANGED}: the run may have had other settings than its row says"
"""What a report says of files that were edited or damaged."""


@dataclass(frozen=True)
class Tuning:
    """What a job of a tuned sweep is there for.

    Args:
        arm: The arm: what is compared, with settings that were searched for it alone.
        phase: ``trial``, ``second``, ``common``, or ``best``: the arm's best setting, confirmed.
        values: The values of the searched keys.
        common: Whether the best setting is the published one, so that it counts as both.
        trial: Its number among the trials of its arm, from 1; None of a run at full budget.
    """

    arm: str
    phase: str
    values: Mapping[str, Any] = field(default_factory=dict)
    common: bool = False
    trial: int | None = None


BEST, SECOND, COMMON, TRIAL = "best", "second", "common", "trial"
"""The phases of a tuned sweep."""


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
        tuning: What it is there for in a tuned sweep; None in any other.
        bytes_per_token: Bytes of a predicted token. ``result`` and ``metrics`` are per byte.
        recorded: The result as the run wrote it.
    """

    folder: Path | None
    name: str
    model: str
    status: str
    reason: str = ""
    result: RunResult | None = None
    config: Mapping[str, Any] | None = None
    job: int | None = None
    seed: int | None = None
    overrides: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    metrics: Metrics | None = field(default=None, repr=False, compare=False)
    tuning: Tuning | None = None
    bytes_per_token: float = 1.0
    recorded: RunResult | None = None

    @property
    def tokens(self) -> str:
        """What tells its tokens from others: ``bytes``, or the hash of the tokenizer."""
        tokenizer = None if self.result is None else self.result.data.tokenizer
        return BYTES if tokenizer is None else str(tokenizer.get("sha256"))

    @property
    def tokens_words(self) -> str:
        """What its tokens are, and how many bytes of its text one stands for."""
        tokenizer = None if self.result is None else self.result.data.tokenizer
        if tokenizer is None:
            return BYTES
        name, size = str(tokenizer.get("name")), f"{tokenizer.get('vocab_size'):,}"
        named = name if size in name else f"{name} of {size}"
        each = f"{tokenizer.get('bytes_per_token')} bytes each"
        return f"{named} ({self.tokens[:_SHOWN_HASH]}), {each}"

    @property
    def is_compared(self) -> bool:
        """Whether it may be in a row: of a tuned sweep only runs of an arm's best setting are.

        A setting was chosen because its trial was good, so its trial says too much for it.
        """
        return self.tuning is None or self.tuning.phase == BEST

    @property
    def counts(self) -> bool:
        """Whether its numbers may enter a mean: it ended well, by definitions known here."""
        result = self.result
        return self.status == RunStatus.OK and result is not None and self.version_is_known

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a group of its configuration; empty if it has none, or is not known."""
        section: Mapping[str, Any] | None = (self.config or {}).get(name)
        return section or {}

    @property
    def grad_accum(self) -> int:
        """Micro-batches of each of its steps."""
        value = self.section("train").get("grad_accum", 1)
        return value if isinstance(value, int) else 1

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
    number, each = job.get("number"), bytes_per_token(result)
    return Run(
        folder=folder,
        name=folder.name,
        model=_model(folder, result, config, job),
        status=DAMAGED if damage else status,
        reason=damage or reason,
        result=None if result is None else result_per_byte(result, each),
        config=config,
        job=number if isinstance(number, int) else None,
        seed=_seed(config, job),
        overrides=_overrides(job),
        swept=tuple(map(str, job.get("swept") or ())),
        problems=tuple(problems),
        metrics=metrics_per_byte(metrics, each),
        tuning=_tuning(job.get("tuning")),
        bytes_per_token=each,
        recorded=result,
    )


def _tuning(record: Any) -> Tuning | None:
    if not isinstance(record, Mapping):
        return None
    values = record.get("values")
    return Tuning(
        arm=str(record.get("arm") or ""),
        phase=str(record.get("phase") or TRIAL),
        values=dict(values) if isinstance(values, Mapping) else {},
        common=bool(record.get("common")),
        trial=trial if isinstance(trial := record.get("trial"), int) else None,
    )


def _overrides(job: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(str(job.get("command", "")))[1:])
    except ValueError:
        return ()


def _end(folder: Path, result: RunResult | None, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return how a run ended and why: by its own files and lock, or else by its sweep's record."""
    seen = str(job.get("status") or "")
    if result is None or result.status != RunStatus.OK:
        running = seen == RUNNING
        process = runs_in(folder, run_files.RESULT) if running or _begun(folder) else None
        if process is not None:
            return RUNNING, f"process {process} runs in it"
        if running and result is None and job.get("watched"):
            return RUNNING, "it has a place"
    if result is not None:
        return _with_result(result, seen, job)
    if seen == RunStatus.OK:
        return DAMAGED, f"no {run_files.RESULT}, though its sweep saw it end well"
    return _without_result(folder, seen, job)


def _with_result(result: RunResult, seen: str, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return how a run with a result ended, if its sweep may have seen another end."""
    own, error = result.status, result.error or ""
    if job.get("reason") and own == RunStatus.INTERRUPTED:
        return seen, str(job["reason"])  # its scheduler stopped it, and it saved
    ended = seen and seen not in NOT_ENDED
    if not ended or not job.get("final") or seen == own:
        return own, error
    if _is_later(result.ended, job["final"]):
        after = f"its sweep had ended before and saw: {seen}"
        return own, "; ".join(filter(None, (error, after)))
    if own == RunStatus.OK:
        return own, f"its process ended as {seen} after it had written its result"
    # The process left no result of its own, or one that could not know why it ended.
    words = f"its result says {own}" + (f": {error}" if error else "")
    return seen, "; ".join(filter(None, (str(job.get("reason") or ""), words)))


def _is_later(one: str | None, other: str) -> bool:
    """Whether a recorded time is after another; times that cannot be read are not."""
    try:
        return datetime.fromisoformat(one or "") > datetime.fromisoformat(other)
    except (ValueError, TypeError):
        return False


def _without_result(folder: Path, seen: str, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return the state of a run without a result in whose folder no process runs."""
    if seen and seen not in NOT_ENDED:
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


def _read_result(folder: Path) -> tuple[RunResult | None, list[str], list[str]]:
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
        result = RunResult.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        return None, [f"{run_files.RESULT}: {place}: {first['msg'].lower()}"], []
    except (ValueError, RecursionError):
        return None, [f"{run_files.RESULT}: not whole JSON ({len(text):,} bytes)"], []
    problems = [f"{run_files.RESULT}: {CHANGED_RESULT}"] if tree_is_changed(tree) else []
    return result, problems, [*_grown(tree, folder / run_files.METRICS)]


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
    folder: Path, result: RunResult | None, config: Mapping[str, Any] | None, job: Mapping[str, Any]
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
    """Whether a folder is that of a run of ``mode=train``; one of its checkpoints is none."""
    if any((folder / name).is_file() for name in (run_files.RESULT, run_files.METRICS)):
        return True
    return _mode(folder) == "train" and not (folder / run_files.META).is_file()


def _mode(folder: Path) -> str | None:
    config, _ = _read_config(folder)
    return str(config.get("mode")) if config else None
