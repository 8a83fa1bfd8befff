"""Published figures for the models of this package, one record per run.

The data is in one YAML file per suite of runs, in this folder. Losses of different suites have
different definitions and settings, so compare only within one suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from elman.base.yaml_file import parsed_yaml
from elman.sections.section import Count, Positive, Section

Date = Annotated[str, Field(pattern=r"^2026-\d\d(-\d\d)?$")]
"""A day, or a month where no day was recorded."""


class Figures(Section):
    """The published numbers of one run.

    Args:
        model: Name of the model's YAML.
        params: Parameters, or null where the run did not record them.
        loss: Nats per byte as its suite defines it, or null.
        tok_s: Tokens per second, or null.
        steps: Optimizer steps, or null.
        memory_gb: Peak memory in GB, or null.
        step_us: Microseconds for one step of time of one layer's recurrence, forward, or null.
        task: Value of ``data=`` if it is the accuracy on a task; then also ``length``, of the
            rows, and ``accuracy``, the share of right answers.
        length: See ``task``.
        accuracy: See ``task``.
        caveat: What a reader must know about this run besides its suite's caveat.
    """

    model: str
    params: Count | None = None
    loss: Positive | None = None
    tok_s: Positive | None = None
    steps: Count | None = None
    memory_gb: Positive | None = None
    step_us: Positive | None = None
    task: str = ""
    length: Count | None = None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    caveat: str = ""


class Circumstances(Section):
    """The facts that all runs of one suite share.

    Args:
        suite: Its name, that of its file.
        date: When it ran.
        setting: Batch and length, time, optimizer.
        definition: What its loss is; empty if it published none.
        citation: Where the figures are: section and table of a specification, seed.
        caveat: What a reader must know before comparing with another suite.
    """

    suite: str
    date: Date
    setting: str
    definition: str = ""
    citation: str
    caveat: str = ""


class PublishedResult(Section):
    """One published run of one model.

    Args:
        figures: Its numbers.
        of: The suite that it belongs to.
    """

    figures: Figures
    of: Circumstances

    @property
    def caveats(self) -> str:
        """Both caveats, the run's own first."""
        return "; ".join(filter(None, (self.figures.caveat, self.of.caveat)))


class _Suite(Circumstances):
    """A suite as in its YAML file."""

    results: list[Figures]

    def records(self) -> Iterator[PublishedResult]:
        shared = Circumstances(**self.model_dump(exclude={"results"}))
        return (PublishedResult(figures=figures, of=shared) for figures in self.results)


@cache
def published() -> tuple[PublishedResult, ...]:
    """Return every record, oldest suite first; a suite without a day sorts last in its month."""
    suites = [_Suite.model_validate(content) for content in _contents()]
    suites.sort(key=lambda suite: (suite.date[:7], suite.date[7:] or "end", suite.suite))
    return tuple(record for suite in suites for record in suite.records())


def _contents() -> Iterator[dict[str, Any]]:
    for file in Path(str(files(__name__))).glob("*.yaml"):
        yield {"suite": file.stem, **parsed_yaml(file.read_text(encoding="utf-8"))}


def published_for(model: str) -> list[PublishedResult]:
    """Return the records of one model."""
    return [record for record in published() if record.figures.model == model]
