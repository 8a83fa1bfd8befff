"""``benchmark=<suite>``: its runs as jobs of a sweep, and what such a command may contain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from elman.base.errors import UserError, did_you_mean
from elman.config.keys import named_keys
from elman.config.mistakes import several_suites
from elman.config.suites import GROUP, model_of, models_of, parse_suite
from elman.config.validate import check_read
from elman.sections.suite import SuiteConfig
from elman.sweeps.expand import Expanded, expand

ONLY = f"{GROUP}.only"


@dataclass(frozen=True)
class ChosenSuite:
    """The suite of a command.

    Args:
        name: Value of ``benchmark=``.
        config: The content of its file, with the user's ``benchmark.only``.
    """

    name: str
    config: SuiteConfig

    @property
    def models(self) -> tuple[str, ...]:
        """The models of its runs, each once, in their order."""
        return models_of(self.config.runs)

    @property
    def definition(self) -> dict[str, Any]:
        """The content of its file, for :func:`elman.config.suites.parse_suite`."""
        return self.config.model_dump(exclude={"only"}, exclude_defaults=True)


def is_of_suites(key: str) -> bool:
    """Whether a key or group chooses a suite or its runs."""
    return key == GROUP or key.startswith(f"{GROUP}.")


def chosen_suite(
    compose: Callable[[list[str]], DictConfig], overrides: Sequence[Override], mode: str
) -> ChosenSuite | None:
    """Return the suite that a command names, or None.

    Args:
        compose: Composes a job's tree from overrides.
        overrides: All overrides of the command.
        mode: Mode of the command.

    Raises:
        UserError: the command names several suites, or a setting that only the suite's file
            may have.
    """
    own = {key: one for one in overrides if is_of_suites(key := _key(one))}
    if not own:
        return None
    check_read(own, mode)
    for key, override in own.items():
        _check_own(key, override)
    tree = compose([own[GROUP].input_line or ""]) if GROUP in own else None
    name = tree.hydra.runtime.choices[GROUP] if tree is not None else None
    if tree is None or name is None:  # benchmark=null
        _refuse_only(own)
        return None
    section = OmegaConf.to_container(tree[GROUP], resolve=True)
    assert isinstance(section, dict)
    if ONLY in own:
        section["only"] = _names(own[ONLY])
    return ChosenSuite(str(name), parse_suite(str(name), section))


def expand_suite(
    suite: ChosenSuite, overrides: Sequence[Override], parser: OverridesParser
) -> list[Expanded]:
    """Return (all overrides, those that distinguish it from the others) for every job of a suite.

    A job has the run's overrides and after them the command's. The later one counts: the user
    wins.

    Raises:
        UserError: the command sets what the runs set, or no run is left.
    """
    own = [override for override in overrides if not is_of_suites(_key(override))]
    for override in own:
        if _key(override) == "model" and suite.models:
            raise UserError(_names_its_models(suite, override))
    jobs: dict[tuple[str, ...], tuple[str, ...]] = {}
    for run in _chosen_runs(suite):
        keys = {text.partition("=")[0] for text in run}
        for job, swept in expand([*parser.parse_overrides(list(run)), *own]):
            if job in jobs:
                raise UserError(_same_twice(suite, run, own))
            jobs[job] = tuple(text for text in job if text in swept or text.split("=")[0] in keys)
    return [((f"{GROUP}={suite.name}", *job), label) for job, label in jobs.items()]


def refuse_without_run(tree: DictConfig, named: frozenset[str]) -> None:
    """Raise UserError if a single job names a suite and none of its runs.

    Args:
        tree: The job's composed tree.
        named: Keys that the command names.
    """
    name = tree.hydra.runtime.choices.get(GROUP)
    if name is None or tree.mode == "suites":
        _refuse_only(named)
        return
    runs = parse_suite(name, OmegaConf.to_container(tree[GROUP], resolve=True)).runs
    if any(named_keys(run) <= named for run in runs):
        _refuse_only(named)
        return
    raise UserError(
        f"{GROUP}={name}: a suite is a sweep; drop hydra.mode=RUN, or add a run of it, as in "
        f"{' '.join(runs[0])}; a file of your own needs the line hydra: {{mode: MULTIRUN}}"
    )


def _refuse_only(named: Iterable[str]) -> None:
    if ONLY in named:
        raise UserError(
            f"{ONLY}: read only by a suite as a whole; drop it, or type elman {GROUP}=<name> "
            f"{ONLY}=<model>"
        )


def _key(override: Override) -> str:
    return override.get_key_element().lstrip("+~")


def _check_own(key: str, override: Override) -> None:
    if key == GROUP and override.is_sweep_override():
        raise UserError(several_suites(override.input_line or ""))
    if key not in (GROUP, ONLY):
        raise UserError(
            f"{key}: is set in the suite's file; to change it copy the file to DIR/{GROUP} and add "
            "--config-dir DIR"
        )


def _names(override: Override) -> str | list[str] | None:
    """Return the entries of ``benchmark.only``: a text, a list, or values separated by commas."""
    if override.is_sweep_override():
        if not override.is_discrete_sweep():
            raise UserError(f"{override.input_line}: list models, as in {ONLY}=e1,e42")
        return list(override.sweep_string_iterator())
    value = override.value()
    if value is None:
        return None
    return [str(one) for one in value] if isinstance(value, list) else str(value)


def _chosen_runs(suite: ChosenSuite) -> list[list[str]]:
    """Return the runs whose models ``benchmark.only`` names."""
    runs, only = suite.config.runs, suite.config.only
    if only is None:
        return runs
    patterns = only.split(",") if isinstance(only, str) else only
    for pattern in patterns:
        if not any(fnmatchcase(model, pattern) for model in suite.models):
            hint = did_you_mean(pattern, suite.models)
            raise UserError(
                f"{ONLY}={pattern}: no run of {GROUP}={suite.name} has this model{hint}; "
                f"its models: {', '.join(suite.models)}"
            )
    return [
        run
        for run in runs
        if any(fnmatchcase(model_of(run) or "", pattern) for pattern in patterns)
    ]


def _names_its_models(suite: ChosenSuite, override: Override) -> str:
    typed = override.input_line or ""
    models = typed.partition("=")[2]
    line = f"{typed}: {GROUP}={suite.name} names its models; "
    if set(models.split(",")) <= set(suite.models):
        return f"{line}to run only these type {ONLY}={models}"
    if override.is_sweep_override():
        return f"{line}drop it, or drop {GROUP}={suite.name} and type elman -m {typed}"
    return (
        f"{line}drop it, or for {models} alone with the suite's settings type "
        f"elman {GROUP}={suite.name} {typed} hydra.mode=RUN"
    )


def _same_twice(suite: ChosenSuite, run: Sequence[str], own: Sequence[Override]) -> str:
    """Return the error for two runs that the command's overrides make the same."""
    keys = {text.partition("=")[0] for text in run}
    taken = [override.input_line or "" for override in own if _key(override) in keys]
    first = taken[0] if taken else " ".join(run)
    return (
        f"{first}: some runs of {GROUP}={suite.name} differ only in this and would be the same; "
        "drop it"
    )
