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


NOT_KNOWN = "not known"
"""What is said of a part of a protocol that nothing says."""


class Protocol(Section):
    """How the model of a figure was trained, as far as known: empty where it is not.

    Args:
        rate: The peak learning rate.
        tuned: Whether each model had its own best settings, and which.
        negative_eigenvalues: Whether a step may multiply the state by a negative number, where the
            model has a choice.
        mlp: Whether an MLP follows each mixer, and how wide it is.
        precision: Of the products.
    """

    rate: str = ""
    tuned: str = ""
    negative_eigenvalues: str = ""
    mlp: str = ""
    precision: str = ""

    @property
    def stated(self) -> dict[str, str]:
        """The parts that are known, by name."""
        return {name: value for name, value in self.model_dump().items() if value}

    @property
    def text(self) -> str:
        """All parts in words."""
        return self._words({name: value or NOT_KNOWN for name, value in self.model_dump().items()})

    @property
    def stated_text(self) -> str:
        """The parts that are known, in words."""
        return self._words(self.stated)

    def _words(self, parts: dict[str, str]) -> str:
        names = {"mlp": "MLP"}
        return ", ".join(
            f"{names.get(name, name.replace('_', ' '))}: {value}" for name, value in parts.items()
        )


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
        withdrawn: Who withdrew the figure, and what it stands for; empty if nobody did.
        protocol: What is known of this run besides its suite's protocol, or differs from it.
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
    withdrawn: str = ""
    protocol: Protocol = Protocol()


class Circumstances(Section):
    """The facts that all runs of one suite share.

    Args:
        suite: Its name, that of its file.
        date: When it ran.
        setting: Batch and length, time, optimizer.
        definition: What its loss is; empty if it published none.
        citation: Where the figures are: section and table of a specification, seed.
        caveat: What a reader must know before comparing with another suite.
        protocol: How its models were trained.
    """

    suite: str
    date: Date
    setting: str
    definition: str = ""
    citation: str
    caveat: str = ""
    protocol: Protocol = Protocol()


class PublishedResult(Section):
    """One published run of one model.

    Args:
        figures: Its numbers.
        of: The suite that it belongs to.
    """

    figures: Figures
    of: Circumstances

    @property
    def protocol(self) -> Protocol:
        """How the model was trained: what the run states, else what its suite states."""
        return Protocol(**(self.of.protocol.stated | self.figures.protocol.stated))

    @property
    def own_caveats(self) -> str:
        """What a reader must know about this run alone: first whether it was withdrawn."""
        figures = self.figures
        withdrawn = f"withdrawn: {figures.withdrawn}" if figures.withdrawn else ""
        return "; ".join(filter(None, (withdrawn, figures.protocol.stated_text, figures.caveat)))

    @property
    def caveats(self) -> str:
        """All caveats, the run's own first."""
        return "; ".join(filter(None, (self.own_caveats, self.of.caveat)))


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
