"""From override strings to a typed configuration: the one door to Hydra's composition.

Imports no torch. The command line, the sweeper, the tests and the Python API all come through here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from elman.config import RunConfig, validate
from elman.models import registry

CONFIG_MODULE = "elman.conf"
CONFIG_NAME = "config"
# Sections of the composed tree that are not part of a single job's typed configuration.
OTHER_SECTIONS = ("hydra",)


@cache
def register_cells() -> None:
    """Offer every cell's defaults to model files as ``/cell/<name>``.

    The declaration in the registry is thereby the only place where an option and its default
    stand; a model's YAML names what differs.
    """
    store = ConfigStore.instance()
    for cell in registry.cells().values():
        node = {
            "name": None,
            "cell": cell.name,
            "dim": "???",
            "depth": "???",
            "wrapper": "rms",
            "allow_unaligned": False,
            "expected_params": None,
        }
        node |= {name: option.default for name, option in cell.options.items()}
        store.store(group="cell", name=cell.name, node=node, provider="elman")


def compose_config(overrides: Sequence[str] = ()) -> RunConfig:
    """Return the typed configuration of ``elman <overrides>``.

    Raises:
        UserError: a setting is unknown, of the wrong type or impossible.
        hydra.errors.HydraException: the overrides cannot be parsed or composed.
    """
    register_cells()
    GlobalHydra.instance().clear()
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        tree = compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
    return typed_config(tree, tree.hydra.runtime.choices["model"], named_keys(overrides))


def typed_config(tree: DictConfig, model_name: str, named: frozenset[str]) -> RunConfig:
    """Validate a composed tree; ``named`` are the dotted keys that the user named."""
    plain: dict[str, Any] = {
        str(key): OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        for key, node in tree.items()
        if key not in OTHER_SECTIONS
    }
    if isinstance(model := plain.get("model"), dict) and model.get("name") is None:
        model["name"] = model_name
    return validate(plain, named)


def named_keys(overrides: Sequence[str]) -> frozenset[str]:
    """Return the keys of ``key=value`` overrides, without Hydra's ``+`` and ``~`` marks."""
    return frozenset(override.split("=", 1)[0].lstrip("+~") for override in overrides)


def as_tree(container: Mapping[str, Any]) -> DictConfig:
    """Return plain containers as an OmegaConf tree."""
    tree = OmegaConf.create(dict(container))
    assert isinstance(tree, DictConfig)
    return tree
