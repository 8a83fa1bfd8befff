"""Spares Hydra and OmegaConf work that changes nothing: half of the time of a composition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, wraps
from typing import Any

import hydra.version
from hydra._internal import defaults_list
from omegaconf import DictConfig
from omegaconf.base import Metadata


@cache
def fast_composition() -> None:
    """Let a composition make only what it reads, and copy only what can be written to."""
    hydra.version._get_version = cache(hydra.version._get_version)
    defaults_list._create_interpolation_map = _where_interpolated(
        defaults_list._create_interpolation_map
    )
    Metadata.__deepcopy__ = _copied  # type: ignore[attr-defined]


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
