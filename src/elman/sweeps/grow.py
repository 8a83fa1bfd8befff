"""``sweep.add=<folder>``: adds jobs to an earlier sweep, in its folder.

An added job is a job that the sweep has, with the settings that are typed now in place of its own.
Values are put into its recorded configuration. A choice of a group is composed, from YAML files
that must still say what they said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydra.core.override_parser.types import Override

from elman.base.errors import UserError
from elman.base.quoting import pasteable
from elman.config.experiment import same_run
from elman.config.keys import key_of, merged
from elman.config.suites import GROUP
from elman.launchers.job import SweepJob
from elman.sweeps.earlier import EarlierSweep
from elman.sweeps.expand import expand
from elman.sweeps.job_list import JobList, named_job
from elman.sweeps.request import SweepRequest
from elman.sweeps.suite_runs import ONLY, ChosenSuite

_PATHS = ("data.path", "data.val_path", "train.init_from")


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
    requested = _asked(request, earlier, old, typed)
    known: dict[str, int] = {}
    for job in old:
        known.setdefault(same_run(job.config), job.number)
    by_texts = {job.overrides: job.config for job in old}
    jobs, wanted, total = list(old), set[int](), len(old) + len(requested)
    for texts, (base, values) in requested.items():
        if (config := by_texts.get(texts)) is None:
            with named_job(len(jobs) + 1, total, texts):
                config = (
                    composer.changed(base.config, texts, values)
                    if from_record
                    else composer.config(texts)
                )
        number = known.setdefault(same_run(config), len(jobs) + 1)
        if number > len(jobs):
            jobs.append(SweepJob(number, total, texts, (), config))
        wanted.add(number)
    return JobList(_labelled(jobs, earlier), frozenset(wanted), len(old), len(recorded or ()))


def composed_again(request: SweepRequest, earlier: EarlierSweep) -> list[SweepJob]:
    """Return the jobs of a sweep as its recorded overrides compose them now."""
    recorded = list(zip(earlier.names, earlier.overrides, earlier.swept, strict=True))
    return [
        replace(
            request.composer.job(number, len(recorded), texts, swept),
            folder=earlier.folder / name,
        )
        for number, (name, texts, swept) in enumerate(recorded, 1)
    ]


def _asked(
    request: SweepRequest, earlier: EarlierSweep, old: Sequence[SweepJob], typed: Sequence[Override]
) -> dict[tuple[str, ...], tuple[SweepJob, tuple[str, ...]]]:
    """Return the overrides of each job that a command asks for, once.

    With each: a job of the sweep, and the overrides that are put in the place of its own.
    """
    if any(key_of(text) == ONLY for text in request.overrides):  # other runs of the suite
        keys = {key_of(text) for text in request.overrides}
        texts = [text for text in earlier.arguments if key_of(text) not in keys]
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
    keys = {key_of(text) for swept in earlier.swept for text in swept}
    by_key = [{key_of(text): text for text in job.overrides} for job in jobs]
    for key in {key for one in by_key for key in one}:
        if len({one.get(key) for one in by_key}) > 1:
            keys.add(key)
    return [
        replace(
            job,
            total=len(jobs),
            swept=tuple(text for text in job.overrides if key_of(text) in keys),
        )
        for job in jobs
    ]


def _refuse(earlier: EarlierSweep, typed: Sequence[Override], suite: ChosenSuite | None) -> None:
    anew = f"start a new sweep: {earlier.first_command}"
    of_runs = {key_of(text) for run in suite.config.runs for text in run} if suite else set()
    swept = {key_of(text) for texts in earlier.swept for text in texts}
    for override in typed:
        line = override.input_line or ""
        key = key_of(line)
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


def nothing_to_add(folder: str) -> str:
    """Return the error for a command that names no setting of the jobs."""
    return (
        f"sweep.add={folder}: names nothing to add; type it, as in train.seed=4,5 or model=e42, or "
        f"type {pasteable('sweep.resume', folder)} to run the jobs that are not ok again"
    )
