"""What Hydra's plugins and callbacks hand to the command line: Hydra itself passes nothing on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elman.base.errors import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from elman.config.run_config import RunConfig
    from elman.launchers.job import SweepJob
    from elman.runs.folder import RunLock
    from elman.sweeps.manifest import Record


class Halt(SystemExit):
    """Carries an exception out of a Hydra callback, which would turn it into a warning."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(int(ExitStatus.USER_ERROR))
        self.cause = cause


@dataclass
class Job:
    """One validated job, ready to run.

    Args:
        config: Its typed configuration.
        folder: Its run folder, or None for a mode that makes none.
        lock: The held lock of ``folder``.
        resumed: Whether the folder holds an earlier part of the same run.
        overrides: What a person typed, or would type, for this job alone, without flags.
        on_taken_up: Called when a resumed run can no longer be refused: what is written into its
            folder before its mode writes there itself.
    """

    config: RunConfig
    folder: Path | None = None
    lock: RunLock | None = None
    resumed: bool = False
    overrides: tuple[str, ...] = ()
    on_taken_up: Callable[[], None] | None = None


@dataclass
class Session:
    """One invocation of the command line.

    Args:
        config_flags: Flags that every process of a sweep needs to find the same YAML files.
        job: The job of this process, once validated.
        status: Exit status so far.
        results: What the jobs of a sweep in this process found, in the order in which they ended.
        jobs: The jobs that a launcher of ours is about to run, with their configurations.
        sweeping: Whether such a sweep is under way: its table will show the results.
        record: Where a launcher of ours notes what becomes of its jobs; None outside a sweep.
        argv: What was typed, without the program's name.
        adopted: Jobs of a sweep that goes on which a cluster still has, with their names there.
    """

    config_flags: list[str] = field(default_factory=list)
    job: Job | None = None
    status: ExitStatus = ExitStatus.OK
    results: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[SweepJob] = field(default_factory=list)
    sweeping: bool = False
    record: Record | None = None
    argv: tuple[str, ...] = ()
    adopted: dict[int, str] = field(default_factory=dict)


_current = Session()


def begin(config_flags: list[str], argv: Sequence[str] = ()) -> Session:
    """Start a new session and return it."""
    global _current
    _current = Session(config_flags, argv=tuple(argv))
    return _current


def current() -> Session:
    """Return the session of this process."""
    return _current


def taken_up() -> None:
    """Note that the job of this process has begun, and can no longer be refused."""
    job = _current.job
    if job is not None and job.on_taken_up is not None:
        job.on_taken_up()


def job_started(number: int) -> None:
    """Note that a job of this process's sweep runs now."""
    if _current.record is not None:
        _current.record.job_started(number)


def job_ended(number: int, code: int) -> str:
    """Note how a job of this process's sweep ended and return the word for it.

    Args:
        number: The job's.
        code: Its exit status, negative for a signal.
    """
    if _current.record is not None:
        return _current.record.job_ended(number, code)
    from elman.runs.status import status_word

    return status_word(code)


def submitted(tasks: Mapping[int, str]) -> None:
    """Note under which names jobs of this process's sweep wait in a cluster's queue."""
    if _current.record is not None:
        _current.record.submitted(tasks)


def job_waits(number: int) -> None:
    """Note that a job of this process's sweep was stopped and will run again."""
    if _current.record is not None:
        _current.record.job_waits(number)
