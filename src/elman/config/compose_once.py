"""Composes the command's settings once.

Hydra composes them twice: first to see whether ``hydra.mode`` is set in a file, then to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict, read_write

_MISSING = "???"


@cache
def compose_once() -> None:
    """Let the second composition of a command be the first one, with what Hydra adds to it."""
    composed = ConfigLoaderImpl.load_configuration
    first: list[tuple[Any, ...]] = []

    def load(
        self: ConfigLoaderImpl,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        if not validate_sweep_overrides:  # Hydra looks for the mode
            tree = composed(self, config_name, overrides, run_mode, from_shell, False)
            first[:] = [(self, config_name, tuple(overrides), tree)]
            return tree
        known = first.pop() if first else None
        if known is not None and known[:2] == (self, config_name):
            more = _added(known[2], overrides)
            if more is not None and _is_whole(known[3]):
                parsed = OverridesParser.create().parse_overrides(overrides)
                self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
                return _with_mode(known[3], run_mode, more)
        return composed(self, config_name, overrides, run_mode, from_shell, True)

    ConfigLoaderImpl.load_configuration = load  # type: ignore[method-assign]


def _added(before: Sequence[str], now: Sequence[str]) -> list[str] | None:
    """Return what Hydra has added to the overrides, or None if they are others."""
    more = list(now[len(before) :])
    if list(now[: len(before)]) != list(before):
        return None
    return more if all(text.startswith("hydra.mode=") for text in more) else None


def _is_whole(tree: DictConfig) -> bool:
    """Whether no group waits for a choice: such a one is skipped when the mode is looked for."""
    return _MISSING not in tree.hydra.runtime.choices.values()


def _with_mode(tree: DictConfig, mode: RunMode, added: Sequence[str]) -> DictConfig:
    with read_write(tree), open_dict(tree):
        if added:
            tree.hydra.mode = mode
        for text in added:
            tree.hydra.overrides.hydra.append(text)
    return tree
