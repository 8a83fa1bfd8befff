"""Section ``benchmark``: a suite of runs, as in its file in conf/benchmark."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from elman.base.errors import UserError
from elman.sections.section import Count, Positive, Section

Run = Annotated[list[str], Field(min_length=1)]
"""The overrides of one run, its model first: ``[model=e1_1280x6, train.batch_size=64]``."""


class PublishedOnly(Section):
    """A published row that no run repeats.

    Args:
        of: Published suite with this row: name of its file in elman.published.
        row: Name of the row there.
        why: Why there is no run of it.
        params: Parameters, or null where they were not recorded.
        loss: As that suite defines it, or null.
        tok_s: Tokens per second, or null.
        steps: Optimizer steps, or null.
        memory_gb: Peak memory in GB, or null.
        step_us: Microseconds for one step of time of one layer's recurrence, forward, or null.
        task: As of published figures, with ``length`` and ``accuracy``.
        length: See ``task``.
        accuracy: See ``task``.
    """

    of: str
    row: str
    why: str
    params: Count | None = None
    loss: Positive | None = None
    tok_s: Positive | None = None
    steps: Count | None = None
    memory_gb: Positive | None = None
    step_us: Positive | None = None
    task: str = ""
    length: Count | None = None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None


Components = dict[str, dict[str, dict[Literal["with", "without"], str]]]
"""Models with and without each component, by family and component."""


class SuiteConfig(Section):
    """Section ``benchmark``.

    Args:
        title: What is compared, in a few words.
        source: Where the suite comes from: section of a specification, seed.
        description: What a reader must know before believing its table.
        published: Published suites with figures of its runs, its own first: names of files in
            elman.published.
        published_only: Published rows that no run repeats.
        claims_speed: Whether its figures are speeds; models without kernels then stop it on a GPU.
        jobs_per_gpu: Jobs that share a GPU unless ``launcher.jobs_per_gpu`` says otherwise, for
            small models whose budget is steps; only ``launcher=gpus`` reads it.
        against: Model of a run with which its report compares the others, unless report.against
            names another; null is the one with the lowest loss.
        components: What its report says the gain of: by family and component the model ``with``
            and the model ``without`` it, as in ``{E88: {gate: {with: a, without: b}}}``.
        runs: The overrides of every run, in the order of the table. A file may have ``grid``
            instead: lists of choices, each an override or a list of them. Its runs are all
            combinations; those of the last list come first, so that a sweep that is stopped has
            all of them for the first choices of the lists before.
        only: Models of the runs to start, by name or pattern (``e75*``); null is all.
    """

    title: str
    source: str
    description: str = ""
    published: list[str] = Field(default_factory=list)
    published_only: list[PublishedOnly] = Field(default_factory=list)
    claims_speed: bool = False
    jobs_per_gpu: Count = 1
    against: str | None = None
    components: Components = Field(default_factory=dict)
    runs: Annotated[list[Run], Field(min_length=1)]
    only: str | list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_grid(cls, section: Any) -> Any:
        """Put the combinations of a grid in the place of the runs."""
        if not isinstance(section, Mapping) or section.get("grid") is None:
            return section
        rest = {key: value for key, value in section.items() if key != "grid"}
        lists = section["grid"]
        if rest.get("runs") is not None:
            raise UserError("grid: the file has runs too; drop one of them")
        if not isinstance(lists, list) or not all(isinstance(one, list) and one for one in lists):
            raise UserError("grid: expected lists of choices, as in [[model=e1, model=e42]]")
        return rest | {"runs": [_combined(run) for run in itertools.product(*lists)]}

    @field_validator("components")
    @classmethod
    def _of_pairs(cls, components: Components) -> Components:
        for family, own in components.items():
            for name, pair in own.items():
                if len(pair) < 2:
                    raise UserError(
                        f"{family}.{name}: needs two models, as in {{with: e88_tiny, without: e1}}"
                    )
        return components

    @field_validator("runs")
    @classmethod
    def _of_overrides(cls, runs: list[Run]) -> list[Run]:
        for text in (text for run in runs for text in run):
            if "=" not in text:
                raise UserError(f"{text}: expected key=value, as in [model=e1, train.batch_size=8]")
        return runs


def _combined(choices: tuple[Any, ...]) -> list[Any]:
    """Return the overrides of one combination, its model first."""
    texts = [t for one in choices for t in (one if isinstance(one, list) else [one])]
    return sorted(texts, key=lambda text: not str(text).startswith("model="))
