"""Spares Hydra and OmegaConf work that changes nothing: two thirds of a composition's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, wraps
from typing import Any

import hydra.version
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig
from omegaconf.base import Metadata

from elman.config.read_once import FILE

# Trees that are kept, each of some 200 kB, for commands with the same choices of groups.
_MOST_TREES = 16


@cache
def fast_composition() -> None:
    """Let a composition make only what it reads, and copy only what can be written to."""
    hydra.version._get_version = cache(hydra.version._get_version)
    defaults_list._create_interpolation_map = _where_interpolated(
        defaults_list._create_interpolation_map
    )
    Metadata.__deepcopy__ = _copied  # type: ignore[attr-defined]
    ConfigLoaderImpl._compose_config_from_defaults_list = _of_same_files(  # type: ignore[method-assign]
        ConfigLoaderImpl._compose_config_from_defaults_list
    )


def _where_interpolated(make: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Make the map for interpolations of a defaults list only where the list has any."""
    unread = DictConfig({})

    @wraps(make)
    def made(overrides: Any, defaults: Sequence[Any], self_added: bool) -> DictConfig:
        if any(default.is_interpolation() for default in defaults):
            return make(overrides, defaults, self_added)
        return unread

    return made


def _copied(metadata: Metadata, memo: dict[int, Any]) -> Metadata:
    """Return a deep copy: but for two dictionaries, metadata are types and plain values."""
    copied = object.__new__(type(metadata))
    copied.__dict__.update(metadata.__dict__)
    copied.flags = None if metadata.flags is None else dict(metadata.flags)
    copied.resolver_cache = defaultdict(dict)
    if metadata.resolver_cache:
        copied.resolver_cache = deepcopy(metadata.resolver_cache, memo)
    return copied


def _of_same_files(merge: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Copy the tree that the same files have made twice in this process."""
    seen: set[tuple[Any, ...]] = set()
    trees: dict[tuple[Any, ...], DictConfig] = {}

    @wraps(merge)
    def merged(loader: Any, defaults: Sequence[Any], repo: Any) -> DictConfig:
        key = _contents(defaults, repo)
        if key in trees:
            return deepcopy(trees[key])
        tree = merge(loader, defaults, repo)
        if key is not None and key in seen:
            if len(trees) == _MOST_TREES:
                del trees[next(iter(trees))]
            trees[key] = deepcopy(tree)
        elif key is not None:
            seen.add(key)
        return tree

    return merged


def _contents(defaults: Sequence[Any], repo: Any) -> tuple[Any, ...] | None:
    """Return what a tree follows from; None where a file may change without our notice."""
    key: list[Any] = []
    for default in defaults:
        loaded = repo.load_config(config_path=default.config_path)
        if (file := getattr(loaded, FILE, None)) is None:
            if loaded is None or loaded.path != "structured://":
                return None
            # Hydra's own stay as they are; others may be stored anew.
            file = loaded.provider if loaded.provider == "hydra" else str(loaded.config)
        key += [file, default.config_path, default.package, default.primary, default.is_self]
    return tuple(key)
