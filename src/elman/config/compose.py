"""Turns override strings into a typed configuration; the only way to Hydra's composition.

Imports no torch. The command line, the sweeper, the tests and the Python API all use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from elman.config.fast_composition import fast_composition
from elman.config.keys import named_keys
from elman.config.mistakes import explain_mistakes
from elman.config.model_files import find_in_folders, model_name
from elman.config.package_files import find_package_files
from elman.config.read_once import read_once
from elman.config.yaml_loader import omegaconf_with_libyaml
from elman.models.cells import registry
from elman.models.cells.declaration import Cell

if TYPE_CHECKING:  # importing pydantic takes 0.1 s, which completion and --help save
    from elman.config.run_config import RunConfig

CONFIG_MODULE = "elman.conf"
CONFIG_NAME = "config"
# Sections of the composed tree that are not part of a single job's typed configuration.
OTHER_SECTIONS = ("hydra", "launcher", "sweep", "tune", "benchmark")


@cache
def register_cells() -> None:
    """Offer every cell's defaults to model files as ``/cell/<name>``.

    An option and its default thus stand in one place only, the declaration in the registry. A
    model's YAML names only what differs.
    """
    read_once()
    fast_composition()
    omegaconf_with_libyaml()
    find_package_files()
    find_in_folders()
    store = ConfigStore.instance()
    # Hydra copies all sources of settings before each composition, and what it reads of this one
    # once more; the copies of all cells were a fifth of its time.
    ConfigStore.__deepcopy__ = _itself  # type: ignore[attr-defined]
    store.repo["cell"] = _Nodes({f"{name}.yaml": cell for name, cell in registry.cells().items()})


class _Nodes(dict[str, Any]):
    """Every cell's defaults in Hydra's form, made when read: a command reads those of one cell."""

    def __getitem__(self, name: str) -> ConfigNode:
        known = super().__getitem__(name)
        if not isinstance(known, ConfigNode):
            node = OmegaConf.structured(_defaults(known))
            known = self[name] = ConfigNode(name, node, "cell", package=None, provider="elman")
        return known


def _defaults(cell: Cell) -> dict[str, Any]:
    """Return what a model of a cell is, unless its YAML says more."""
    node: dict[str, Any] = {
        "name": None,
        "cell": cell.name,
        "dim": "???",
        "depth": "???",
        "wrapper": "rms",
        "mlp_ratio": 0.0,
        "allow_unaligned": False,
        "expected_params": None,
        "layers": None,
    }
    return node | {name: option.default for name, option in cell.options.items()}


def _itself(store: ConfigStore, memo: object) -> ConfigStore:
    """Stand for a copy of a store: nobody writes to one that a composition reads."""
    return store


def compose_config(overrides: Sequence[str] = ()) -> RunConfig:
    """Return the typed configuration of ``elman <overrides>``.

    Raises:
        UserError: an override cannot be read, or a setting is unknown, of the wrong type or
            impossible.
    """
    with explain_mistakes(overrides, compose_tree):
        tree = compose_tree(overrides)
        return typed_config(tree, tree.hydra.runtime.choices["model"], named_keys(overrides))


def compose_tree(overrides: Sequence[str] = ()) -> DictConfig:
    """Return the untyped tree of ``elman <overrides>``, Hydra's own section included."""
    register_cells()
    # Leaves alone the global state of a command line that may be running around this call.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
            return compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = outer


def typed_config(tree: DictConfig, model_choice: str, named: frozenset[str]) -> RunConfig:
    """Validate a composed tree; ``named`` are the dotted keys that the user named."""
    from elman.config.validate import validate

    plain = plain_tree(tree, model_choice)
    if plain.get("mode") == "suites":  # the data of a suite are complete in each of its runs alone
        plain["data"] = {}
    return validate(plain, named)


def plain_tree(tree: DictConfig, model_choice: str) -> dict[str, Any]:
    """Return a composed tree as plain containers, interpolations resolved, without ``hydra``.

    Raises:
        omegaconf.errors.OmegaConfBaseException: an interpolation leads nowhere, or a mandatory
            value is missing.
    """
    plain: dict[str, Any] = {}
    for key in tree:
        if key in OTHER_SECTIONS:
            continue
        node = tree[key]
        plain[str(key)] = (
            OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            if OmegaConf.is_config(node)
            else node
        )
    if isinstance(model := plain.get("model"), dict) and model.get("name") is None:
        model["name"] = model_name(model_choice)
    return plain


def typed_overrides(tree: DictConfig, kind: Literal["task", "hydra"]) -> list[str]:
    """Return the overrides of a composed tree as typed: the job's own, or Hydra's."""
    # Unresolved, because a typed override may contain ${...}.
    typed = OmegaConf.to_container(tree.hydra.overrides[kind], resolve=False)
    assert isinstance(typed, list)
    return [str(text) for text in typed]


def as_tree(container: Mapping[str, Any]) -> DictConfig:
    """Return plain containers as an OmegaConf tree."""
    tree = OmegaConf.create(dict(container))
    assert isinstance(tree, DictConfig)
    return tree
