"""Every suite that a command can see, read from the suite's file alone. Imports no torch.

A suite is a file in conf/benchmark: runs, the settings that they share, and the published figures
of their models. ``benchmark=<name>`` composes the same file through Hydra.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from elman.base.errors import UserError, did_you_mean
from elman.base.yaml_file import not_utf8, parsed_yaml
from elman.config.catalog import SHIPPED, Place, group_files
from elman.published import Circumstances, Figures, PublishedResult, published
from elman.sections.budget import BUDGETS
from elman.sections.suite import Components, PublishedOnly, SuiteConfig

GROUP = "benchmark"


@dataclass(frozen=True, kw_only=True)
class SuiteFigures:
    """A suite's description of itself, and the published figures of its models.

    Args:
        title: What it compares, in a few words.
        description: What a reader must know before believing its table.
        published: Figures of its models in the published suites that it names, its own first.
        published_only: Published rows that no run repeats: ``figures.model`` is the row's published
            name, ``figures.caveat`` begins with the reason.
        against: Model with which its report compares the others, or None.
        components: The models with and without each component whose gain its report says, by
            family and component.
    """

    title: str = ""
    description: str = ""
    published: tuple[PublishedResult, ...] = field(repr=False, default=())
    published_only: tuple[PublishedResult, ...] = field(repr=False, default=())
    against: str | None = None
    components: Components = field(default_factory=dict)

    def published_for(self, model: str) -> list[PublishedResult]:
        """Return the figures of one model, those of the suite's own runs first."""
        return [record for record in self.published if record.figures.model == model]


@dataclass(frozen=True, kw_only=True)
class Suite(SuiteFigures):
    """One suite.

    Args:
        name: Value of ``benchmark=``.
        title: What it compares, in a few words.
        description: What a reader must know before believing its table.
        citation: Its source: section of a specification, seed.
        runs: The overrides of every run, its model among them.
        budgets: What limits each run, by key of group ``train``, as far as its file says so.
        shared: Other settings that its runs share, as a user would type them.
        claims_equal_size: Whether it is refused if its models' sizes differ too much.
        claims_speed: Whether it is refused on a GPU if a model has no kernel there.
    """

    name: str
    title: str
    description: str
    citation: str
    runs: tuple[tuple[str, ...], ...]
    budgets: Mapping[str, float]
    shared: tuple[str, ...]
    claims_equal_size: bool
    claims_speed: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        """The models of its runs, each once, in their order."""
        return models_of(self.runs)

    @property
    def gpu_hours(self) -> float | None:
        """Hours of training of all runs together, or None if nothing limits their time."""
        minutes = self.budgets.get("minutes")
        return None if minutes is None else minutes * len(self.runs) / 60


def model_of(run: Sequence[str]) -> str | None:
    """Return the model that a run's overrides choose, or None."""
    chosen = [text.partition("=")[2] for text in run if text.partition("=")[0] == "model"]
    return chosen[-1] if chosen else None


def models_of(runs: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the models that runs choose, each once, in their order."""
    return tuple(dict.fromkeys(filter(None, map(model_of, runs))))


def suite_names(places: Sequence[Place] = (SHIPPED,)) -> list[str]:
    """Return the name of every suite in some places, in alphabetical order."""
    return sorted(group_files(GROUP, places))


def load_suite(name: str, places: Sequence[Place] = (SHIPPED,)) -> Suite:
    """Return one suite.

    Args:
        name: Value of ``benchmark=``.
        places: The search path as Hydra has it: schemes and paths.

    Raises:
        UserError: there is no such suite, or its file is wrong.
    """
    found = group_files(GROUP, places)
    if name not in found:
        hint = did_you_mean(name, found)
        raise UserError(f"benchmark={name}: no such suite{hint}; `elman mode=suites` lists all")
    return _suite(name, _content(found[name]))


def recorded_figures(name: str, section: Any) -> SuiteFigures:
    """Return the published figures of a suite that a sweep recorded; its file may be gone.

    Args:
        name: Value of ``benchmark=``.
        section: The sweep's record of it.

    Raises:
        UserError: it is not the content of a suite's file.
    """
    return _figures(parse_suite(name, section))


def parse_suite(name: str, section: Any) -> SuiteConfig:
    """Return section ``benchmark`` of a file or a composed tree.

    Raises:
        UserError: it is not the content of a suite's file.
    """
    if isinstance(section, Mapping) and GROUP in section:
        raise UserError(f"{GROUP}={name}: its file needs the first line # @package _global_")
    try:
        config = SuiteConfig.model_validate(section)
    except ValidationError as error:
        raise UserError(_wrong_file(name, error)) from None
    _refuse_untrained(name, config)
    for suite in (*config.published, *(row.of for row in config.published_only)):
        if suite not in _circumstances():
            hint = did_you_mean(suite, _circumstances())
            raise UserError(
                f"benchmark.published (in benchmark={name}): {suite} is not a file of "
                f"elman.published{hint}; fix or drop it"
            )
    return config


def _refuse_untrained(name: str, config: SuiteConfig) -> None:
    """Raise UserError if the file compares a model that no run of it trains."""
    models = models_of(config.runs)
    compared = {"against": config.against} if config.against is not None else {}
    for family, own in config.components.items():
        for component, pair in own.items():
            for kind, model in pair.items():
                compared[f"components.{family}.{component}.{kind}"] = model
    for key, model in compared.items():
        if model not in models:
            raise UserError(
                f"benchmark.{key} (in benchmark={name}): no run of it trains {model}"
                f"{did_you_mean(model, models)}; fix or drop it"
            )


def _wrong_file(name: str, error: ValidationError) -> str:
    """Return pydantic's first finding in a suite's file as one line."""
    problem = error.errors()[0]
    places = [str(part) for part in problem["loc"] if not isinstance(part, int)]
    wrong = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if problem["type"] == "extra_forbidden":
        wrong = "no such setting" + did_you_mean(places[-1], SuiteConfig.model_fields)
    elif problem["type"] == "missing":
        wrong = "missing"
    return (
        f"{'.'.join((GROUP, *places))} (in {GROUP}={name}): {wrong}; "
        "docs/suites.md shows a whole file"
    )


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = parsed_yaml(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise UserError(f"{file}, line {line}: not valid YAML; fix that line") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: {not_utf8(error)}; save it as UTF-8") from None
    except RecursionError:
        raise UserError(f"{file}: nested too deep; docs/suites.md shows a whole file") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: not a suite; docs/suites.md shows a whole file")
    return content


def _suite(name: str, content: Mapping[str, Any]) -> Suite:
    config = parse_suite(name, content.get(GROUP))
    train, sweep = content.get("train") or {}, content.get("sweep") or {}
    figures = _figures(config)
    return Suite(
        published=figures.published,
        published_only=figures.published_only,
        against=figures.against,
        components=figures.components,
        name=name,
        title=config.title,
        description=config.description,
        citation=config.source,
        runs=tuple(tuple(run) for run in config.runs),
        budgets={key: train[key] for key in BUDGETS if train.get(key) is not None},
        shared=tuple(_shared(content)),
        claims_equal_size=bool(sweep.get("equal_size")),
        claims_speed=config.claims_speed,
    )


def _figures(config: SuiteConfig) -> SuiteFigures:
    models = {model_of(run) for run in config.runs}
    records = [
        record
        for suite in config.published
        for record in published()
        if record.of.suite == suite and record.figures.model in models
    ]
    return SuiteFigures(
        title=config.title,
        description=config.description,
        published=tuple(records),
        published_only=tuple(_published_only(row) for row in config.published_only),
        against=config.against,
        components=config.components,
    )


def _shared(content: Mapping[str, Any]) -> list[str]:
    """Return the groups that a suite's file chooses and the settings that it sets."""
    found = []
    for entry in content.get("defaults") or ():
        if isinstance(entry, dict):
            pairs = ((str(key), value) for key, value in entry.items())
            found += [f"{key.removeprefix('override /')}={value}" for key, value in pairs]
    for section, settings in content.items():
        if isinstance(settings, dict) and section not in (GROUP, "hydra", "sweep"):
            found += _typed_settings(section, settings)
    return found


def _typed_settings(section: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of a section as a user types them, nested ones with all their keys."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _typed_settings(f"{section}.{key}", value)
        else:
            yield f"{section}.{key}={_typed(value)}"


def _typed(value: Any) -> str:
    """Return a value of YAML as a user types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


@cache
def _circumstances() -> dict[str, Circumstances]:
    return {record.of.suite: record.of for record in published()}


def _published_only(row: PublishedOnly) -> PublishedResult:
    numbers = row.model_dump(exclude={"of", "row", "why"})
    figures = Figures(model=row.row, caveat=row.why, **numbers)
    return PublishedResult(figures=figures, of=_circumstances()[row.of])
