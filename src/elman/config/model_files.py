"""Where the shipped models' files are. Imports no torch.

Architectures and the names that people type lie in ``conf/model``, sizes of published runs in a
folder there for each comparison. A model's name is that of its file, without the folder: no two
files have the same. So a file can move, and every name that a paper or a run's folder has goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins

MODEL = "model"
"""The group, and its folder."""


@cache
def model_files() -> dict[str, Path]:
    """Return the file of every shipped model by its name, those of the top folder first."""
    top = Path(str(files("elman.conf")), MODEL)
    return {file.stem: file for file in (*top.glob("*.yaml"), *top.glob("*/*.yaml"))}


def folder_of(file: Path) -> str:
    """Return the folder of a published size in group ``model``; empty for any other file."""
    return file.parent.name if file.parent.parent.name == MODEL else ""


def count_sizes() -> int:
    """Return how many sizes of published comparisons there are."""
    return sum(bool(folder_of(file)) for file in model_files().values())


def model_name(choice: str) -> str:
    """Return a model's name from a value of ``model=``, which may begin with its folder."""
    folder, _, name = choice.rpartition("/")
    file = model_files().get(name)
    return name if file is not None and folder == folder_of(file) else choice


def _with_folder(config_path: str) -> str:
    """Return the path of a model's file in Hydra's form, with the folder that it lies in."""
    group, _, name = config_path.removesuffix(".yaml").rpartition("/")
    file = model_files().get(name) if group == MODEL else None
    folder = folder_of(file) if file is not None else ""
    return f"{MODEL}/{folder}/{name}" if folder else config_path


@cache
def find_in_folders() -> None:
    """Let Hydra find a shipped model by its name alone, and list all names as one group."""
    Plugins.instance()  # which imports the sources anew
    shipped: Any = SourcesRegistry.instance().resolve("pkg")
    for method in ("load_config", "is_config"):
        setattr(shipped, method, _of_one_path(getattr(shipped, method)))
    listed = shipped.list

    def names(source: Any, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if source.path != "elman.conf" or config_path.strip("/") != MODEL:
            found: list[str] = listed(source, config_path, results_filter)
            return found
        return [] if results_filter == ObjectType.GROUP else sorted(model_files())

    shipped.list = names


def _of_one_path(method: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def found(source: Any, config_path: str) -> Any:
        own = source.path == "elman.conf"
        return method(source, _with_folder(config_path) if own else config_path)

    return found
