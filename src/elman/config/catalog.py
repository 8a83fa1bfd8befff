"""Every model YAML that a command can see: the shipped ones and the user's own. Imports no torch.

Hydra composes one model in 0.1 s, so 300 of them would take half a minute. Most files only name a
cell or another model to start from, and the settings that differ. Those are merged here, and a test
compares the result with Hydra's; any other file goes through Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from elman.base.errors import UserError
from elman.base.quoting import quoted
from elman.config.compose import (
    CONFIG_MODULE,
    compose_config,
    compose_tree,
    plain_tree,
    register_cells,
)
from elman.config.model_files import MODEL, folder_of, model_files
from elman.config.validate import validate
from elman.models.cells import registry
from elman.sections.model import VOCAB_SIZE, ModelConfig

SHIPPED = ("pkg", CONFIG_MODULE)
"""The place of the package's own YAML files, in Hydra's form: a scheme and a path."""
Place = tuple[str, str]


@dataclass(frozen=True)
class Listed:
    """One model YAML.

    Args:
        name: Value of ``model=``.
        source: Its first line, without the comment mark.
        config: The model, or None if the file is wrong.
        problem: What is wrong with the file, in one line.
        folder: The comparison that a published size is of; empty for architectures and own files.
    """

    name: str
    source: str
    config: ModelConfig | None
    problem: str = ""
    folder: str = ""

    def has(self, text: str) -> bool:
        """Whether its name, cell, source or folder contains a text, in any letters."""
        cell = self.config.cells if self.config else ""
        parts = (self.name, cell, self.source, self.folder)
        return any(text.lower() in part.lower() for part in parts)


def catalog(places: Sequence[Place] = (SHIPPED,), *, sizes: bool = True) -> list[Listed]:
    """Return every model in some places: architectures and own files, then folder by folder.

    The E-series comes first in each part. Of files with one name the first counts.

    Args:
        places: The search path as Hydra has it: schemes and paths.
        sizes: Whether sizes of published comparisons are among them.
    """
    found = group_files(MODEL, places)
    reader = _Reader(found, search_overrides(places))
    folders = {name: reader.folder(name) for name in found}
    listed = [name for name in found if sizes or not folders[name]]
    return [
        reader.listed(name)
        for name in sorted(listed, key=lambda name: (folders[name], natural(name)))
    ]


def listed_models(names: Iterable[str], places: Sequence[Place] = (SHIPPED,)) -> list[Listed]:
    """Return some models in some places; a model without a file gets that as its problem.

    Args:
        names: Values of ``model=``.
        places: The search path as Hydra has it: schemes and paths.
    """
    found = group_files(MODEL, places)
    reader = _Reader(found, search_overrides(places))
    missing = "no such model; `elman mode=models` lists all"
    return [
        reader.listed(name) if name in found else Listed(name, "", None, missing) for name in names
    ]


def first_line(name: str, places: Sequence[Place] = (SHIPPED,)) -> str:
    """Return the first line of a model's file, or nothing if the model has no file."""
    file = group_files(MODEL, places).get(name)
    return _first_comment(file) if file else ""


def natural(name: str) -> tuple[bool, list[str | int]]:
    """Return a key that sorts e4 before e14, and the E-series before everything else."""
    parts = re.split(r"(\d+)", name)
    is_other = re.match(r"e\d", name) is None
    return is_other, [int(part) if part.isdigit() else part for part in parts]


def group_files(group: str, places: Iterable[Place] = (SHIPPED,)) -> dict[str, Path]:
    """Return every file of a group; of files with one name the first counts, as in Hydra.

    Of group ``model`` also the shipped files in folders.
    """
    found: dict[str, Path] = {}
    for scheme, path in places:
        if scheme not in ("pkg", "file"):
            continue
        folder = Path(str(files(path))) if scheme == "pkg" else Path(path)
        inside = (folder / group).glob("*.yaml")
        shipped = group == MODEL and (scheme, path) == SHIPPED
        for file in filter(Path.is_file, model_files().values() if shipped else inside):
            found.setdefault(file.stem, file)
    return found


def _first_comment(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as stream:
        first = stream.readline().strip()
    return first.lstrip("# ") if first.startswith("#") else ""


def search_overrides(places: Iterable[Place]) -> list[str]:
    """Return the overrides that let a composition see files that are not shipped."""
    own = [f"{scheme}://{path}" for scheme, path in places if scheme in ("pkg", "file")]
    more = [
        quoted(place) for place in own if place not in ("pkg://hydra.conf", "://".join(SHIPPED))
    ]
    return [f"hydra.searchpath=[{','.join(more)}]"] if more else []


class _NotPlainError(Exception):
    """A file with more in it than the merge here understands."""


class _Reader:
    """Reads model files that build on one another."""

    def __init__(self, found: Mapping[str, Path], search: Sequence[str]) -> None:
        self._files, self._search = found, search
        self._trees: dict[str, dict[str, Any]] = {}
        register_cells()

    def folder(self, name: str) -> str:
        """Return the folder of a published size; empty for any other model."""
        file = self._files[name]
        return folder_of(file) if file == model_files().get(name) else ""

    def listed(self, name: str) -> Listed:
        """Return one model, with its problem if it has one."""
        source, folder = _first_comment(self._files[name]), self.folder(name)
        try:
            return Listed(name, source, self._config(name), folder=folder)
        except UserError as error:
            return Listed(name, source, None, str(error), folder)

    def _config(self, name: str) -> ModelConfig:
        try:
            model = self._tree(name) | {"name": name}
            if "???" in model.values():
                raise _NotPlainError
            checked = validate(_other_sections() | {"model": model}).model
            return checked.with_vocabulary(model.get("vocab_size", VOCAB_SIZE))
        except _NotPlainError:
            chosen = name if re.fullmatch(r"[\w.-]+", name) else quoted(name)
            overrides = [f"model={chosen}", *self._search]
            checked = compose_config(overrides).model  # it explains mistakes
            own = compose_tree(overrides).model.get("vocab_size", VOCAB_SIZE)
            return checked.with_vocabulary(own)

    def _tree(self, name: str) -> dict[str, Any]:
        """Return the keys of a file, merged over those of the files that it starts from."""
        if name not in self._trees:
            own = self._read(name)
            merged: dict[str, Any] = {}
            for entry in own.pop("defaults", ()):
                merged |= own if entry == "_self_" else self._started_from(entry)
            self._trees[name] = merged
        return self._trees[name]

    def _read(self, name: str) -> dict[str, Any]:
        try:
            content = OmegaConf.to_container(OmegaConf.load(self._files[name]))
        except Exception:  # not YAML: Hydra says what is wrong
            raise _NotPlainError from None
        if not isinstance(content, dict) or "_self_" not in (content.get("defaults") or ()):
            raise _NotPlainError
        values = [value for key, value in content.items() if key != "defaults"]
        if not all(isinstance(value, bool | int | float | str | list | None) for value in values):
            raise _NotPlainError
        if any(isinstance(value, str | list) and "${" in str(value) for value in values):
            raise _NotPlainError
        return {str(key): value for key, value in content.items()}

    def _started_from(self, entry: Any) -> dict[str, Any]:
        """Return what one entry of a defaults list brings into the model."""
        if isinstance(entry, str) and entry in self._files:
            return self._tree(entry)
        if isinstance(entry, str) and (cell := re.fullmatch(r"/cell/([\w-]+)@_here_", entry)):
            return _cell_node(cell[1])
        if isinstance(entry, Mapping) and all(
            re.match(r"override /(?!model|cell)", str(key)) for key in entry
        ):
            return {}  # another group: a training recipe
        raise _NotPlainError


def _cell_node(name: str) -> dict[str, Any]:
    if name not in registry.cells():
        raise _NotPlainError
    node = OmegaConf.to_container(ConfigStore.instance().load(f"cell/{name}.yaml").node)
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


@cache
def _other_sections() -> dict[str, Any]:
    """Return a whole configuration's sections, with a model in them."""
    return plain_tree(compose_tree(), "")
