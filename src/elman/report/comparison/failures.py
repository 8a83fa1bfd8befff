"""Which runs failed, why, and the command that runs them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.base.errors import RunStatus
from elman.base.quoting import pasteable
from elman.report.comparison.collect import Source
from elman.report.comparison.notes import ending
from elman.report.comparison.runs import Run
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED

# What a lone run cannot get over by going on from its checkpoint.
_NOT_AGAIN = (RunStatus.NAN, RunStatus.REFUSED)


@dataclass(frozen=True)
class Failure:
    """Runs that ended in the same way.

    Args:
        words: How, where and why.
        runs: The runs.
    """

    words: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Failures:
    """The runs of one folder that failed.

    Args:
        found: Each way in which they ended, with its runs.
        when: When to type the command, in words.
        command: The command that runs them again; empty if there is none.
    """

    found: tuple[Failure, ...]
    when: str
    command: str


def failures_of(source: Source) -> Failures | None:
    """Return the runs of a folder that failed; None if there are none."""
    good = {RunStatus.OK, RUNNING, *((NOT_STARTED, UNFINISHED) if source.living else ())}
    failed = [run for run in source.runs if run.status not in good]
    if not failed:
        return None
    groups: dict[str, list[Run]] = {}
    for run in failed:
        groups.setdefault(ending(run), []).append(run)
    found = tuple(Failure(words, tuple(runs)) for words, runs in groups.items())
    when = "To run them again"
    if source.living:
        when = "Once the sweep has ended, to run them again"
    return Failures(found, when, _command(source, failed))


def _command(source: Source, failed: Sequence[Run]) -> str:
    if source.is_sweep:
        return f"elman -m {pasteable('sweep.resume', str(source.folder))}"
    (first, *others) = failed
    if others or first.folder is None or first.status in _NOT_AGAIN:
        return ""
    return f"elman {pasteable('train.resume', str(first.folder))}"
