"""``sweep.add=<folder>``: adds jobs to an earlier sweep, in its folder.

An added job is a job that the sweep has, with the settings that are typed now in place of its own.
Values are put into its recorded configuration. A choice of a group is composed, from YAML files
that must still say what they said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.types import Override

from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable
from elman.config.experiment import same_run
from elman.config.run_config import RunConfig
from elman.config.suites import GROUP
from elman.evaluation.result import RunResult
from elman.launchers.job import SweepJob
from elman.runs.state import read_run_result
from elman.sweeps.composing import named_job
from elman.sweeps.earlier import EarlierSweep
from elman.sweeps.expand import expand
from elman.sweeps.request import SweepRequest
from elman.sweeps.suite_runs import ONLY, ChosenSuite

_PATHS = ("data.path", "data.val_path", "train.init_from")
_OF_DATA = ("bytes", "sha256", "sample_sha256", "train_bytes")


@dataclass(frozen=True)
class JobList:
    """The jobs of a sweep.

    Args:
        jobs: All of them, those from before first.
        wanted: Numbers of the jobs that this command asks for, whether they are new or not.
        before: How many jobs the sweep had.
        recorded: How many of the first ones it has recorded as they were composed.
    """

    jobs: list[SweepJob]
    wanted: frozenset[int]
    before: int = 0
    recorded: int = 0

    @classmethod
    def whole(cls, jobs: list[SweepJob], *, recorded: bool = False) -> JobList:
        """Return a sweep all of whose jobs are asked for."""
        wanted = frozenset(job.number for job in jobs)
        return cls(jobs, wanted, recorded=len(jobs) if recorded else 0)

    @property
    def asked(self) -> list[SweepJob]:
        """The jobs that this command asks for."""
        return [job for job in self.jobs if job.number in self.wanted]

    @property
    def unrecorded(self) -> list[SweepJob]:
        """The jobs whose configurations are still to be recorded."""
        return self.jobs[self.recorded :]

    @property
    def new(self) -> list[SweepJob]:
        """The jobs that the sweep did not have."""
        return [job for job in self.asked if job.number > self.before]


def grown_jobs(
    request: SweepRequest,
    earlier: EarlierSweep,
    recorded: Sequence[SweepJob] | None,
    suite: ChosenSuite | None,
) -> JobList:
    """Return the jobs of a sweep, and those that a command adds.

    Args:
        request: The command.
        earlier: The sweep.
        recorded: Its jobs as they were composed, or None if it has not recorded them.
        suite: Its suite, or None.

    Raises:
        UserError: the command sets something that an added job cannot have, or a YAML file that it
            needs has changed.
    """
    composer, typed = request.composer, request.composer.parsed(request.overrides)
    _refuse(earlier, typed, suite)
    from_record = recorded is not None and composer.only_values(request.overrides)
    old = list(recorded or ())
    if not from_record:
        again = composed_again(request, earlier)
        earlier.check_same([job.config for job in again])
        old = old or again
    asked = _asked(request, earlier, old, typed)
    known: dict[str, int] = {}
    for job in old:
        known.setdefault(same_run(job.config), job.number)
    by_texts = {job.overrides: job.config for job in old}
    jobs, wanted, total = list(old), set[int](), len(old) + len(asked)
    for texts, (base, values) in asked.items():
        if (config := by_texts.get(texts)) is None:
            with named_job(len(jobs) + 1, total, texts):
                config = (
                    composer.config(texts, request.may_pack)
                    if not from_record
                    else composer.changed(base.config, texts, values, request.may_pack)
                )
        number = known.setdefault(same_run(config), len(jobs) + 1)
        if number > len(jobs):
            jobs.append(SweepJob(number, total, texts, (), config))
        wanted.add(number)
    return JobList(_labelled(jobs, earlier), frozenset(wanted), len(old), len(recorded or ()))


def composed_again(request: SweepRequest, earlier: EarlierSweep) -> list[SweepJob]:
    """Return the jobs of a sweep as its recorded overrides compose them now."""
    jobs, overrides = list[SweepJob](), earlier.overrides
    for number, (texts, swept) in enumerate(zip(overrides, earlier.swept, strict=True), 1):
        with named_job(number, len(overrides), texts):
            config = request.composer.config(texts, request.may_pack)
        folder = earlier.folder / earlier.names[number - 1]
        jobs.append(SweepJob(number, len(overrides), texts, swept, config, folder))
    return jobs


def _asked(
    request: SweepRequest, earlier: EarlierSweep, old: Sequence[SweepJob], typed: Sequence[Override]
) -> dict[tuple[str, ...], tuple[SweepJob, tuple[str, ...]]]:
    """Return the overrides of each job that a command asks for, once.

    With each: a job of the sweep, and the overrides that are put in the place of its own.
    """
    if any(_key(text) == ONLY for text in request.overrides):  # other runs of the suite
        keys = {_key(text) for text in request.overrides}
        texts = [text for text in earlier.arguments if _key(text) not in keys]
        texts += request.overrides
        expanded = request.composer.expanded(texts, request.composer.suite(texts))
        return {texts: (old[0], ()) for texts, _ in expanded}
    found: dict[tuple[str, ...], tuple[SweepJob, tuple[str, ...]]] = {}
    changes = [texts for texts, _ in expand(typed)]
    for job in old:
        for values in changes:
            found.setdefault(merged(job.overrides, values), (job, values))
    return found


def _labelled(jobs: Sequence[SweepJob], earlier: EarlierSweep) -> list[SweepJob]:
    """Give every job the overrides that distinguish it, now that there are more jobs."""
    keys = {_key(text) for swept in earlier.swept for text in swept}
    by_key = [{_key(text): text for text in job.overrides} for job in jobs]
    for key in {key for one in by_key for key in one}:
        if len({one.get(key) for one in by_key}) > 1:
            keys.add(key)
    return [
        replace(
            job,
            total=len(jobs),
            swept=tuple(text for text in job.overrides if _key(text) in keys),
        )
        for job in jobs
    ]


def merged(own: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """Return overrides with others in their places, or after them."""
    merged = {_key(text): text for text in own}
    merged |= {_key(text): text for text in texts}
    return tuple(merged.values())


def _refuse(earlier: EarlierSweep, typed: Sequence[Override], suite: ChosenSuite | None) -> None:
    anew = f"start a new sweep: {earlier.first_command}"
    of_runs = {_key(text) for run in suite.config.runs for text in run} if suite else set()
    swept = {_key(text) for texts in earlier.swept for text in texts}
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


def check_unchanged(earlier: EarlierSweep, jobs: Sequence[SweepJob], allow_code: bool) -> list[str]:
    """Check that new jobs would have the data and the code of those that ended; return notes.

    Args:
        earlier: The sweep.
        jobs: Its jobs from before, with their folders.
        allow_code: Whether other code is only noted.

    Raises:
        UserError: the data or the code is not what an earlier job had.
    """
    results = [(job, found) for job in jobs if (found := _result(job)) is not None]
    _check_data(earlier, results)
    return list(_check_code(earlier, results, allow_code))


def _result(job: SweepJob) -> RunResult | None:
    found = read_run_result(job.folder) if job.folder is not None else None
    return found if found is not None and found.status == RunStatus.OK else None


def _check_data(earlier: EarlierSweep, results: Sequence[tuple[SweepJob, RunResult]]) -> None:
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
                f"sweep.add={earlier.folder}: the data is not what job {job.number} read: "
                f"{_bytes(before)} then, {_bytes(now)} now; restore the file, or start a new "
                f"sweep: {earlier.first_command}"
            )


def _data_now(config: RunConfig) -> dict[str, Any] | None:
    """Return what identifies the data as it is now; None if it would have to be packed first."""
    from elman.data.batches import identity_without_packing

    return identity_without_packing(config.data, config.train.chunk_size, print)


def _bytes(data: Mapping[str, Any]) -> str:
    print_ = str(data.get("sample_sha256") or data.get("sha256") or "unknown")
    return f"{data.get('bytes') or 0:,} bytes, sha256 {print_[:12]}"


def _check_code(
    earlier: EarlierSweep,
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
                f"sweep.add={earlier.folder}: the code has changed: job {job.number} ran with "
                f"{before}, this is {now}; check that revision out, add "
                f"sweep.allow_changed_code=true, or start a new sweep: {earlier.first_command}"
            )
        if before != now:
            yield f"note: job {job.number} ran with {before}, added jobs run with {now}"
        elif before.endswith("-dirty"):
            yield f"note: {before} has uncommitted changes, so it may not be the code of job 1"


def nothing_to_add(folder: str) -> str:
    """Return the error for a command that names no setting of the jobs."""
    return (
        f"sweep.add={folder}: names nothing to add; type it, as in train.seed=4,5 or model=e42, or "
        f"type {pasteable('sweep.resume', folder)} to run the jobs that are not ok again"
    )


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")
