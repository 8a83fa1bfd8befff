"""The folders that a user names, each a sweep or a run, and the runs in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.quoting import pasteable
from elman.config.catalog import SHIPPED, Place
from elman.config.suites import SuiteFigures, load_suite, recorded_figures
from elman.report.comparison.runs import Run, is_run, read_run
from elman.runs.folder import lock_holder

UNREADABLE = f"{run_files.SWEEP} cannot be read: jobs that never started are not listed"


@dataclass(frozen=True)
class Source:
    """One folder that the user named, with its runs.

    Args:
        folder: As named, absolute.
        runs: Its runs, in the order of the sweep.
        is_sweep: Whether it is the folder of a sweep.
        command: The command of that sweep as it was typed, or empty.
        started: When the sweep began, as recorded, or empty.
        ended: When it ended; empty while it runs, or if it was killed.
        living: Whether it runs now.
        benchmark: The suite that it ran, or None.
        suite: The published figures of that suite, or None.
        suite_keys: The keys that the runs of that suite set.
        added: The commands that added jobs to it, oldest first.
        problems: What could not be read, and how to resume the sweep, one line each.
    """

    folder: Path
    runs: tuple[Run, ...]
    is_sweep: bool = False
    command: str = ""
    started: str = ""
    ended: str = ""
    living: bool = False
    benchmark: str | None = None
    suite: SuiteFigures | None = None
    suite_keys: frozenset[str] = frozenset()
    added: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def compared(self) -> tuple[Run, ...]:
        """The runs that may be in a row."""
        return tuple(run for run in self.runs if run.is_compared)

    @property
    def about(self) -> tuple[str, str]:
        """What its suite compares, and what a reader must know before using the table."""
        if self.suite is None or not self.suite.title:
            return "", ""
        title, text = (
            " ".join(part.split()) for part in (self.suite.title, self.suite.description)
        )
        return f"{self.benchmark}: {title}", text


def load_sources(
    folders: Sequence[Path], places: Sequence[Place] = (SHIPPED,), key: str = "report.dir"
) -> list[Source]:
    """Return the runs of every folder, each run once.

    Args:
        folders: The folders.
        places: Where to look for the file of a suite that its sweep has not recorded.
        key: The setting that names them, for errors.

    Raises:
        UserError: a folder does not exist, cannot be read, or holds neither a sweep nor a run.
    """
    seen: set[Path] = set()
    sources = []
    for folder in folders:
        for source in _sources(folder.expanduser().absolute(), places, key):
            fresh = [run for run in source.runs if run.folder and run.folder.resolve() not in seen]
            seen |= {run.folder.resolve() for run in fresh if run.folder}
            sources.append(replace(source, runs=tuple(fresh)))
    return sources


def _sources(folder: Path, places: Sequence[Place], key: str) -> list[Source]:
    if not folder.exists():
        raise UserError(f"{key}={folder}: no such folder; sweeps and runs are below outputs/")
    if not folder.is_dir():
        raise UserError(f"{key}={folder}: this is a file; name the folder that it is in")
    try:
        children = sorted(path for path in folder.iterdir() if path.is_dir())
        if (folder / run_files.SWEEP).is_file():
            return [_sweep(folder, children, places, key)]
        if is_run(folder):
            return [Source(folder, (read_run(folder),))]
        return _all_in(folder, children, places, key)
    except PermissionError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _all_in(
    folder: Path, children: Sequence[Path], places: Sequence[Place], key: str
) -> list[Source]:
    """Return the sweeps and runs directly in a folder that is neither, like a day's folder."""
    every, problems = [], []
    for child in children:
        if (child / run_files.SWEEP).is_file():
            try:
                inside = sorted(path for path in child.iterdir() if path.is_dir())
                every.append(_sweep(child, inside, places, key))
            except UserError as error:
                problems.append(f"left out: {str(error).partition('; ')[0]}")
    runs = tuple(read_run(child) for child in children if is_run(child))
    if not runs and not every:
        raise UserError(
            f"{key}={folder}: no sweep and no training run (no {run_files.SWEEP}, "
            f"{run_files.RESULT} or {run_files.METRICS} in it); name a folder below outputs/"
        )
    return [*every, Source(folder, runs, problems=tuple(problems))] if runs or problems else every


def _sweep(folder: Path, children: Sequence[Path], places: Sequence[Place], key: str) -> Source:
    path = folder / run_files.SWEEP
    try:
        content = json.loads(path.read_bytes())
        final, launcher = content.get("ended") is not None, lock_holder(folder)
        of_sweep = {"final": content.get("ended") or "", "watched": launcher is not None}
        jobs = [_job(job) | of_sweep for job in content["jobs"]]
        added = tuple(str(one["typed"]) for one in content.get("added") or ())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        runs = tuple(read_run(child) for child in children if is_run(child))
        return Source(folder, runs, is_sweep=True, problems=(UNREADABLE,))
    if (mode := content.get("mode", "train")) != "train":
        raise UserError(f"{key}={folder}: a sweep of mode={mode}, but this is for training runs")
    suite, problems = _suite(content, places)
    problems += () if final else _unended(folder, launcher)
    return Source(
        folder,
        tuple(read_run(folder / job["folder"], job) for job in jobs),
        is_sweep=True,
        command=str(content.get("typed") or content.get("command") or ""),
        started=str(content.get("started") or ""),
        ended=str(content.get("ended") or ""),
        living=not final and launcher is not None,
        benchmark=str(content["benchmark"]) if content.get("benchmark") else None,
        suite=suite,
        suite_keys=_suite_keys(content),
        added=added,
        problems=problems,
    )


def _unended(folder: Path, launcher: str | None) -> tuple[str, ...]:
    """Tell whether a sweep without a recorded end still runs, or how to resume it."""
    if launcher is not None:
        return (f"the sweep still runs (pid {launcher})",)
    again = f"elman -m {pasteable('sweep.resume', str(folder))}"
    return (f"its launcher was killed before the end; to resume it: {again}",)


def _suite(
    content: Mapping[str, Any], places: Sequence[Place]
) -> tuple[SuiteFigures | None, tuple[str, ...]]:
    """Return the published figures of a sweep's suite, and what is wrong with them.

    A sweep records its suite. For an older sweep without it, the present file of that name counts.
    """
    if not content.get("benchmark"):
        return None, ()
    name, recorded = str(content["benchmark"]), content.get("suite")
    try:
        if recorded is not None:
            return recorded_figures(name, recorded), ()
        return load_suite(name, places), ()
    except UserError as error:
        line = f"the published figures of its suite are left out: {error}"
        more = "; if it is your own, add --config-dir DIR" if recorded is None else ""
        return None, (line + more,)


def _suite_keys(content: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that the recorded suite's runs set; a damaged record names none."""
    suite = content.get("suite")
    runs = suite.get("runs") if isinstance(suite, Mapping) else None
    known = runs if isinstance(runs, list) else []
    texts = (text for run in known if isinstance(run, list) for text in run)
    return frozenset(str(text).partition("=")[0] for text in texts)


def _job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``sweep.json``.

    Raises:
        TypeError: the entry is missing or has another type.
    """
    if not isinstance(job.get("folder"), str):
        raise TypeError
    return dict(job)
