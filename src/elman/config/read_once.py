"""Parses each shipped file of settings once a process; a sweep composes every job from them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult

FILE = "elman_file"
"""Attribute of what was read: which file, in which state."""


@cache
def read_once() -> None:
    """Let Hydra keep what it has parsed of a file until that changes: a fifth of its time."""
    Plugins.instance()  # which imports the sources anew
    shipped: Any = SourcesRegistry.instance().resolve("pkg")
    read = shipped._read_config
    known: dict[tuple[Any, ...], ConfigResult] = {}

    def kept(source: Any, file: Any) -> ConfigResult:
        if not isinstance(file, Path):  # in an archive
            found: ConfigResult = read(source, file)
            return found
        state = file.stat()
        key = (source.provider, source.path, file, state.st_mtime_ns, state.st_size)
        if key not in known:
            known[key] = read(source, file)
            setattr(known[key], FILE, key)
        return deepcopy(known[key])  # Hydra writes to what it gets

    shipped._read_config = kept
