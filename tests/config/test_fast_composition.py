"""What a composition is spared changes nothing: its trees are those of Hydra alone."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import hydra.version
import pytest
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Metadata, Node

from elman.config.compose import compose_tree

COMMANDS = [
    "",
    "model=e1 train.steps=3 optim=muon",
    "mode=eval eval.checkpoint=run",
    "data=recall data.pairs=3",
    # A defaults list of the user's own names a choice of the command.
    "+mine=both hydra.searchpath=['file://FOLDER']",
]


def _by_hydra_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = defaults_list._create_interpolation_map.__wrapped__
    monkeypatch.setattr(defaults_list, "_create_interpolation_map", whole)
    monkeypatch.setattr(hydra.version, "_get_version", hydra.version._get_version.__wrapped__)
    merge = ConfigLoaderImpl._compose_config_from_defaults_list.__wrapped__
    monkeypatch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", merge)
    monkeypatch.delattr(Metadata, "__deepcopy__")


def _nodes(node: Node, path: str = "") -> dict[str, tuple[Any, ...]]:
    """Return what every node of a tree holds, and which rules it follows."""
    known = node._metadata
    rules = (known.ref_type, known.object_type, known.optional, known.key, known.flags)
    found: dict[str, tuple[Any, ...]] = {path: (type(node), *rules)}
    if isinstance(node, DictConfig) and isinstance(node._content, dict):
        for key, child in node._content.items():
            found |= _nodes(child, f"{path}.{key}")
    elif isinstance(node, ListConfig) and isinstance(node._content, list):
        for number, child in enumerate(node._content):
            found |= _nodes(child, f"{path}.{number}")
    else:
        found[path] += (node._value(),)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tree_is_the_one_of_hydra_alone(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "part").mkdir(parents=True)
    (tmp_path / "mine" / "both.yaml").write_text("defaults: [part: '${mine}', _self_]\nmore: 3\n")
    (tmp_path / "mine" / "part" / "both.yaml").write_text("less: 2\n")
    overrides = command.replace("FOLDER", str(tmp_path)).split()
    # The third of the same files is a copy.
    fast, _, copied = [compose_tree(overrides) for _ in range(3)]
    with monkeypatch.context() as patch:
        _by_hydra_alone(patch)
        alone = compose_tree(overrides)
    assert _nodes(fast) == _nodes(copied) == _nodes(alone)
    if "+mine=both" in overrides:
        assert fast.mine == {"part": {"less": 2}, "more": 3}


def test_what_a_user_stores_anew_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", dict(store.repo))
    for rate in (1, 2):
        store.store(group="mine", name="stored", node={"rate": rate}, provider="a notebook")
        for _ in range(3):
            assert compose_tree(["+mine=stored"]).mine.rate == rate


def test_a_copy_of_a_tree_is_its_own() -> None:
    tree = OmegaConf.create({"a": {"b": 1}})
    copied = deepcopy(tree)
    OmegaConf.set_readonly(copied.a, True)
    tree._metadata.resolver_cache["now"]["x"] = 1
    assert not OmegaConf.is_readonly(tree.a)
    assert not copied._metadata.resolver_cache
    assert deepcopy(tree)._metadata.resolver_cache == {"now": {"x": 1}}
