"""Composes the many jobs of a sweep, each group choice once.

Hydra takes 0.2 s for one job. The jobs of a sweep differ in a few group choices (``model=``,
``data=``) and in values. A composition depends on the choices alone; values are put into a copy of
it, as Hydra does. Two choices that change different sections are put together from the compositions
that have one of them each. If they change one section both, Hydra composes the job itself, as it
does for everything that is not a plain choice or value.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from elman.base.errors import UserError
from elman.config.compose import OTHER_SECTIONS, compose_tree
from elman.config.mistakes import explain_mistakes
from elman.config.run_config import RunConfig
from elman.launchers.job import SweepJob
from elman.runs.prepare import composed_config, job_overrides, with_files, without_folder
from elman.runs.prepared import PreparedRun
from elman.runs.recorded_job import put_config
from elman.sections.launching import SweepConfig
from elman.sweeps.expand import Expanded, expand
from elman.sweeps.job_list import named_job
from elman.sweeps.settings import composed_sizes, is_of_sweeps
from elman.sweeps.suite_runs import ChosenSuite, chosen_suite, expand_suite

Choices = tuple[tuple[str, str], ...]
"""Groups and their choices, as typed."""


class JobComposer:
    """Composes jobs on top of a command's own composition.

    Args:
        context: Hydra's context.
        master: The command's composed tree.
        may_pack: Whether data that must be packed is packed when a job is composed; else it is
            only checked.
    """

    def __init__(self, context: HydraContext, master: DictConfig, *, may_pack: bool) -> None:
        loader = context.config_loader
        assert isinstance(loader, ConfigLoaderImpl)
        self._may_pack = may_pack
        self._loader, self._master = loader, master
        self._parser = OverridesParser.create(config_loader=loader)
        self._composed: dict[Choices, DictConfig] = {}
        self._plain: dict[Choices, dict[str, Any]] = {}
        self._changes: dict[Choices, set[str]] = {}
        self._copies: dict[Choices, bytes] = {}
        self._first: dict[str, str] | None = None
        self._groups: dict[str, bool] = {}

    def whole(self, texts: Sequence[str]) -> DictConfig:
        """Return the tree of a job as Hydra composes it."""
        return self._loader.load_sweep_config(self._master, list(texts))

    def tree(self, texts: Sequence[str]) -> DictConfig:
        """Return the tree of a job; of ``hydra`` only what checks read.

        Raises:
            Exception: what Hydra raises for such a command.
        """
        parsed = self._parser.parse_overrides(list(texts))
        if not all(map(_is_plain, parsed)) or any(map(_is_of_the_sweep, parsed)):
            return self.whole(texts)
        choices = {one.key_or_group: str(one.value()) for one in parsed if self._is_group(one)}
        values = [one for one in parsed if not self._is_group(one)]
        if self._first is None:
            self._first = choices
        tree = self._chosen(choices)
        ConfigLoaderImpl._apply_overrides_to_config(values, tree)
        tree.hydra.overrides.task = list(texts)
        OmegaConf.copy_cache(from_config=self._master, to_config=tree)
        return tree

    def parsed(self, texts: Sequence[str]) -> list[Override]:
        """Return overrides as Hydra reads them.

        Raises:
            UserError: one of them cannot be read.
        """
        with explain_mistakes(texts, compose_tree):
            return self._parser.parse_overrides(list(texts))

    def refuse_swept_settings(self, texts: Sequence[str]) -> None:
        """Refuse several values for a setting of the whole sweep, and settings of a single run."""
        for override in self.parsed(texts):
            key = override.get_key_element().lstrip("+~")
            if is_of_sweeps(key) and override.is_sweep_override():
                raise UserError(
                    f"{override.input_line}: applies to the whole sweep; give one value"
                )
            if key == "train.resume" and override.value() is not None:
                raise UserError(
                    f"{override.input_line}: resumes one run, and this is a sweep; type elman -m "
                    "sweep.resume=<folder of the sweep or suite>, or elman train.resume=<run "
                    "folder> alone"
                )

    def suite(self, texts: Sequence[str]) -> ChosenSuite | None:
        """Return the suite that overrides choose, or None."""
        with explain_mistakes(texts, compose_tree):
            return chosen_suite(self.whole, self.parsed(texts), str(self._master.mode))

    def expanded(self, texts: Sequence[str], suite: ChosenSuite | None) -> list[Expanded]:
        """Return the overrides of every job that a command asks for."""
        overrides = self.parsed(texts)
        with explain_mistakes(texts, compose_tree):
            return expand_suite(suite, overrides, self._parser) if suite else expand(overrides)

    def sizes(self, texts: Sequence[str]) -> SweepConfig:
        """Return group ``sweep`` as these overrides compose it."""
        with explain_mistakes(texts, compose_tree):
            return composed_sizes(self.whole(texts))

    def job(
        self, number: int, total: int, texts: Sequence[str], swept: Sequence[str] = ()
    ) -> SweepJob:
        """Return a job, composed and checked, without its folder.

        Raises:
            UserError: a setting is wrong; the error says of which job.
        """
        with named_job(number, total, swept or texts):
            config = self.config(texts)
        return SweepJob(number, total, tuple(texts), tuple(swept), config)

    def config(self, texts: Sequence[str]) -> RunConfig:
        """Return the checked configuration of a job with these overrides.

        Raises:
            UserError: a setting is wrong.
        """
        with explain_mistakes(texts, self.whole):
            return self._checked(self.tree(texts))

    def changed(self, config: RunConfig, texts: Sequence[str], values: Sequence[str]) -> RunConfig:
        """Return a job's configuration with other values, checked.

        Args:
            config: The job's, whatever its YAML files say by now.
            texts: All overrides of the changed job.
            values: Those of them that are new: no choices of groups.
        """
        with explain_mistakes(texts, self.whole):
            tree = _without_most_of_hydra(deepcopy(self._master))
            put_config(tree, config)
            OmegaConf.set_struct(tree, True)
            ConfigLoaderImpl._apply_overrides_to_config(self.parsed(values), tree)
            with open_dict(tree.hydra):
                tree.hydra.overrides.task = list(texts)
            return self._checked(tree)

    def only_values(self, texts: Sequence[str]) -> bool:
        """Whether overrides set values of jobs alone: no choices, and nothing that adds a key."""
        return all(
            _is_value(one) and not self._is_group(one) and not _is_of_the_sweep(one)
            for one in self.parsed(texts)
        )

    def prepared(self, job: SweepJob) -> PreparedRun:
        """Return a job that runs in this process and makes no folder."""
        search = [text for text in job_overrides(self._master) if text.startswith("hydra.")]
        run = without_folder(self._master, job.config)
        return replace(run, overrides=(*job.overrides, *search), in_sweep=True)

    def _checked(self, tree: DictConfig) -> RunConfig:
        config = composed_config(tree)
        if config.train.resume is not None:
            raise UserError(
                "train.resume: cannot be swept; resume each run by a command of its own"
            )
        return with_files(tree, config, may_pack=self._may_pack)

    def _is_group(self, override: Override) -> bool:
        key = override.key_or_group
        if key not in self._groups:
            self._groups[key] = self._loader.repository.group_exists(key)
        return self._groups[key]

    def _chosen(self, choices: Mapping[str, str]) -> DictConfig:
        """Return a tree of its own with these choices."""
        key = _key(choices)
        if key not in self._copies:
            # Unpickling takes a fifth of the time of a deep copy.
            self._copies[key] = pickle.dumps(self._found(choices))
        tree: DictConfig = pickle.loads(self._copies[key])
        return tree

    def _found(self, choices: Mapping[str, str]) -> DictConfig:
        """Return the tree with these choices, put together where that is possible."""
        assert self._first is not None
        if set(choices) != set(self._first):
            return self._with(choices)
        changed = [group for group, choice in choices.items() if choice != self._first[group]]
        singles = [{**self._first, group: choices[group]} for group in changed]
        if len(changed) < 2 or not self._are_apart(singles):
            return self._with(choices)
        return self._together(singles)

    def _with(self, choices: Mapping[str, str]) -> DictConfig:
        """Return Hydra's tree of these choices alone; nobody may write to it."""
        key = _key(choices)
        if key not in self._composed:
            tree = self.whole([f"{group}={choice}" for group, choice in choices.items()])
            self._plain[key] = _sections(tree)
            self._composed[key] = _without_most_of_hydra(tree)
        return self._composed[key]

    def _sections_of(self, choices: Mapping[str, str]) -> dict[str, Any]:
        self._with(choices)
        return self._plain[_key(choices)]

    def _differing(self, choices: Mapping[str, str]) -> set[str]:
        """Return the sections in which these choices differ from those of the first job."""
        assert self._first is not None
        place = _key(choices)
        if place not in self._changes:
            here, first = self._sections_of(choices), self._sections_of(self._first)
            self._changes[place] = {
                key for key in here | first if here.get(key, _NONE) != first.get(key, _NONE)
            }
        return self._changes[place]

    def _are_apart(self, singles: Sequence[Mapping[str, str]]) -> bool:
        """Whether no section differs from the first job's for two of these."""
        sections = [key for single in singles for key in self._differing(single)]
        return len(sections) == len(set(sections))

    def _together(self, singles: Sequence[Mapping[str, str]]) -> DictConfig:
        """Return the first job's tree with what each of the others changes."""
        assert self._first is not None
        tree = self._chosen(self._first)
        with read_write(tree), open_dict(tree), open_dict(tree.hydra):
            for single in singles:
                other = self._chosen(single)
                for key in self._differing(single):
                    _take(tree, other, key)
        return tree


_NONE = object()
_OF_THE_SWEEP = tuple(name for name in OTHER_SECTIONS if name != "hydra")
_CHOICE = "hydra.runtime.choices."


def _key(choices: Mapping[str, str]) -> Choices:
    return tuple(sorted(choices.items()))


def _is_plain(override: Override) -> bool:
    """Whether an override is ``key=value``, and not about Hydra itself."""
    return _is_value(override) and not override.is_sweep_override()


def _is_value(override: Override) -> bool:
    """Whether an override is ``key=value`` or ``key=value,value``, and not about Hydra itself."""
    return (
        override.package is None
        and not (override.is_add() or override.is_force_add() or override.is_delete())
        and not override.is_hydra_override()
    )


def _is_of_the_sweep(override: Override) -> bool:
    """Whether an override is about a section that no job reads."""
    return override.key_or_group.partition(".")[0] in _OF_THE_SWEEP and "." in (
        override.key_or_group
    )


def _sections(tree: DictConfig) -> dict[str, Any]:
    """Return a tree's sections as plain containers, and each choice of a group beside them."""
    plain = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(plain, dict)
    hydra = plain.pop("hydra")
    choices = {f"{_CHOICE}{group}": one for group, one in hydra["runtime"]["choices"].items()}
    read = {str(key): one for key, one in plain.items() if key not in _OF_THE_SWEEP}
    return read | choices


def _without_most_of_hydra(tree: DictConfig) -> DictConfig:
    """Drop the sections that no job reads, and most of Hydra's own: most of the tree."""
    with read_write(tree), open_dict(tree), open_dict(tree.hydra):
        for key in [str(key) for key in tree.hydra]:
            if key not in ("runtime", "overrides", "job"):
                del tree.hydra[key]
        for key in _OF_THE_SWEEP:
            tree.pop(key, None)
    return tree


def _take(tree: DictConfig, other: DictConfig, key: str) -> None:
    """Put one section, or one choice of a group, of another tree into a tree."""
    inner, name = tree, key
    if key.startswith(_CHOICE):
        inner, other = tree.hydra.runtime.choices, other.hydra.runtime.choices
        name = key.removeprefix(_CHOICE)
    if name in other:
        with open_dict(inner):
            inner._set_item_impl(name, other._get_node(name))
    else:
        inner.pop(name, None)
