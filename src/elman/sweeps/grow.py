"""``sweep.add=<folder>``: adds jobs to an earlier sweep, in its folder.

An added job is a job that the sweep has, with the settings that are typed now in place of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable
from elman.config.experiment import same_run
from elman.config.run_config import RunConfig
from elman.config.suites import GROUP
from elman.evaluation.result import RunResult
from elman.launchers.command import ALONE
from elman.launchers.job import SweepJob
from elman.runs.state import read_run_result
from elman.sweeps.expand import expand
from elman.sweeps.resume import read_sweep
from elman.sweeps.suite_runs import ONLY, ChosenSuite

Compose = Callable[[int, int, Sequence[str]], RunConfig]
"""Returns the configuration of a job, given its number, the number of jobs, and its overrides."""
_PATHS = ("data.path", "data.val_path", "train.init_from")
_OF_DATA = ("bytes", "sha256", "sample_sha256", "train_bytes")


@dataclass(frozen=True)
class Grown:
    """The jobs of a sweep that was grown.

    Args:
        jobs: All of them, those from before first.
        wanted: Numbers of the jobs that this command asks for, whether they are new or not.
        before: How many jobs the sweep had.
    """

    jobs: list[SweepJob]
    wanted: frozenset[int]
    before: int = 0

    @classmethod
    def whole(cls, jobs: list[SweepJob]) -> Grown:
        """Return a sweep all of whose jobs are asked for."""
        return cls(jobs, frozenset(job.number for job in jobs))

    @property
    def asked(self) -> list[SweepJob]:
        """The jobs that this command asks for."""
        return [job for job in self.jobs if job.number in self.wanted]

    @property
    def new(self) -> list[SweepJob]:
        """The jobs that the sweep did not have."""
        return [job for job in self.asked if job.number > self.before]


def is_grown(earlier: Mapping[str, Any] | None) -> bool:
    """Whether jobs were added to a sweep: its first command does not give all its jobs."""
    return bool((earlier or {}).get("added"))


def recorded_overrides(earlier: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the overrides of each job that a sweep has recorded."""
    alone = {ALONE}
    return [
        tuple(text for text in shlex.split(job["command"])[1:] if text not in alone)
        for job in earlier["jobs"]
    ]


def grown_jobs(
    earlier: Mapping[str, Any], asked: Sequence[tuple[str, ...]], compose: Compose
) -> Grown:
    """Return the jobs of a sweep, and those of ``asked`` that it does not have.

    Args:
        earlier: Content of its ``sweep.json``.
        asked: Overrides of the jobs that are asked for.
        compose: Composes and checks a job.
    """
    old = recorded_overrides(earlier)
    total = len(old) + len(asked)
    jobs = [
        SweepJob(number, total, texts, (), compose(number, total, texts))
        for number, texts in enumerate(old, 1)
    ]
    known: dict[str, int] = {}
    for job in jobs:
        known.setdefault(same_run(job.config), job.number)
    by_texts = {job.overrides: job.config for job in jobs}
    wanted = set()
    for texts in asked:
        config = by_texts.get(texts) or compose(len(jobs) + 1, total, texts)
        number = known.setdefault(same_run(config), len(jobs) + 1)
        if number > len(jobs):
            jobs.append(SweepJob(number, total, texts, (), config))
        wanted.add(number)
    return Grown(_labelled(jobs, earlier), frozenset(wanted), len(old))


def _labelled(jobs: Sequence[SweepJob], earlier: Mapping[str, Any]) -> list[SweepJob]:
    """Give every job the overrides that distinguish it, now that there are more jobs."""
    keys = {_key(text) for job in earlier["jobs"] for text in job.get("swept") or ()}
    values: dict[str, set[str | None]] = {}
    told = [{_key(text): text for text in job.overrides} for job in jobs]
    for key in {key for one in told for key in one}:
        values[key] = {one.get(key) for one in told}
    keys |= {key for key, found in values.items() if len(found) > 1}
    return [
        replace(
            job,
            total=len(jobs),
            swept=tuple(text for text in job.overrides if _key(text) in keys),
        )
        for job in jobs
    ]


def asked_jobs(
    earlier: Mapping[str, Any],
    typed: Sequence[Override],
    suite: ChosenSuite | None,
    expanded_suite: Callable[[], Sequence[tuple[str, ...]]],
) -> list[tuple[str, ...]]:
    """Return the overrides of the jobs that a command asks to add, each once.

    Args:
        earlier: Content of ``sweep.json``.
        typed: The overrides of this command for its jobs.
        suite: The suite of the sweep, or None.
        expanded_suite: Returns the jobs of the suite with the overrides of the first command and
            of this one; called if the command names other runs of the suite.

    Raises:
        UserError: the command sets something that an added job cannot have.
    """
    _refuse(earlier, typed, suite)
    if any(_key(override.input_line or "") == ONLY for override in typed):
        return list(dict.fromkeys(expanded_suite()))
    found: dict[tuple[str, ...], None] = {}
    for own in recorded_overrides(earlier):
        for texts, _ in expand(typed):
            found[_with(own, texts)] = None
    return list(found)


def _with(own: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """Return overrides with others in their places, or after them."""
    merged = {_key(text): text for text in own}
    merged |= {_key(text): text for text in texts}
    return tuple(merged.values())


def _refuse(
    earlier: Mapping[str, Any], typed: Sequence[Override], suite: ChosenSuite | None
) -> None:
    anew = f"start a new sweep: {first_command(earlier)}"
    of_runs = {_key(text) for run in suite.config.runs for text in run} if suite else set()
    swept = {_key(text) for job in earlier["jobs"] for text in job.get("swept") or ()}
    for override in typed:
        line = override.input_line or ""
        key = _key(line)
        if key in ("mode", GROUP):
            raise UserError(f"{line}: sweep.add keeps the {key} of the sweep; drop it, or {anew}")
        # Another seed of a run is a run of the suite all the same.
        if key in of_runs and suite is not None and key != "train.seed":
            only = f"; to add runs of the suite type {ONLY}=<model>" if key == "model" else ""
            raise UserError(f"{line}: the runs of {GROUP}={suite.name} set it; drop it{only}")
        if key.split(".")[0] == "data" and key not in swept:
            raise UserError(f"{line}: sweep.add keeps the data of the sweep; drop it, or {anew}")
        if key in _PATHS and not _is_whole(line.partition("=")[2]):
            raise UserError(f"{line}: with sweep.add give a whole path, as in {key}=/home/...")


def _is_whole(value: str) -> bool:
    return value == "null" or value.lstrip("['\"").startswith(("/", "~"))


def check_unchanged(
    folder: Path, earlier: Mapping[str, Any], jobs: Sequence[SweepJob], allow_code: bool
) -> list[str]:
    """Check that new jobs would have the data and the code of those that ended; return notes.

    Args:
        folder: The sweep's folder.
        earlier: Content of its ``sweep.json``.
        jobs: Its jobs from before, with their folders.
        allow_code: Whether other code is only noted.

    Raises:
        UserError: the data or the code is not what an earlier job had.
    """
    results = [(job, found) for job in jobs if (found := _result(job)) is not None]
    _check_data(folder, earlier, results)
    return list(_check_code(folder, earlier, results, allow_code))


def _result(job: SweepJob) -> RunResult | None:
    found = read_run_result(job.folder) if job.folder is not None else None
    return found if found is not None and found.status == RunStatus.OK else None


def _check_data(
    folder: Path, earlier: Mapping[str, Any], results: Sequence[tuple[SweepJob, RunResult]]
) -> None:
    seen: set[str] = set()
    for job, result in results:
        text = repr(job.config.data)
        if text in seen or not result.data.model_fields_set:
            continue
        seen.add(text)
        before = result.data.model_dump(include=set(_OF_DATA))
        now = _data_now(job.config)
        if now is not None and now != before:
            raise UserError(
                f"sweep.add={folder}: the data is not what job {job.number} read: "
                f"{_bytes(before)} then, {_bytes(now)} now; restore the file, or start a new "
                f"sweep: {first_command(earlier)}"
            )


def _data_now(config: RunConfig) -> dict[str, Any] | None:
    """Return what identifies the data as it is now; None if it would have to be packed first."""
    from elman.data.batches import identity_without_packing

    return identity_without_packing(config.data, config.train.chunk_size, print)


def _bytes(data: Mapping[str, Any]) -> str:
    print_ = str(data.get("sample_sha256") or data.get("sha256") or "unknown")
    return f"{data.get('bytes') or 0:,} bytes, sha256 {print_[:12]}"


def _check_code(
    folder: Path,
    earlier: Mapping[str, Any],
    results: Sequence[tuple[SweepJob, RunResult]],
    allow: bool,
) -> Iterator[str]:
    from elman.base.version import __version__
    from elman.devices.environment import revision

    now = revision() or __version__
    told = set()
    for job, result in results:
        before = result.environment.revision or result.environment.elman
        if before is None or before in told:
            continue
        told.add(before)
        if before != now and not allow:
            raise UserError(
                f"sweep.add={folder}: the code has changed: job {job.number} ran with {before}, "
                f"this is {now}; check that revision out, add sweep.allow_changed_code=true, or "
                f"start a new sweep: {first_command(earlier)}"
            )
        if before != now:
            yield f"note: job {job.number} ran with {before}, added jobs run with {now}"
        elif before.endswith("-dirty"):
            yield f"note: {before} has uncommitted changes, so it may not be the code of job 1"


def check_not_grown_meanwhile(folder: Path, earlier: Mapping[str, Any]) -> None:
    """Raise UserError if another command has added jobs since ``earlier`` was read."""
    now = [job["folder"] for job in read_sweep(folder, "sweep.add")["jobs"]]
    if now != [job["folder"] for job in earlier["jobs"]]:
        raise UserError(
            f"sweep.add={folder}: another command has added jobs meanwhile; type the command again"
        )


def nothing_to_add(folder: str) -> str:
    """Return the error for a command that names no setting of the jobs."""
    return (
        f"sweep.add={folder}: names nothing to add; type it, as in train.seed=4,5 or model=e42, or "
        f"type {pasteable('sweep.resume', folder)} to run the jobs that are not ok again"
    )


def first_command(earlier: Mapping[str, Any]) -> str:
    """Return the command that started a sweep."""
    return str(earlier.get("typed") or earlier["command"])


def prefixes(earlier: Mapping[str, Any] | None) -> dict[int, str]:
    """Return the number at the beginning of each job's folder, as it was when the job was new."""
    jobs = (earlier or {}).get("jobs", [])
    return {int(job["number"]): str(job["folder"]).partition("_")[0] for job in jobs}


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")
