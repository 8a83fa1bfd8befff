"""Lets OmegaConf, and with it Hydra, parse YAML with libyaml."""

from __future__ import annotations

import io
from functools import cache
from typing import Any, TextIO

import yaml
from omegaconf import _utils

from elman.base.yaml_file import FAST_LOADER, is_for_libyaml


@cache
def omegaconf_with_libyaml() -> None:
    """Let it, which saves half a second of the start of a command.

    The loader has OmegaConf's own rules: its numbers, no dates, and no key twice.
    """
    python = _utils.get_yaml_loader()

    class Loader(FAST_LOADER):  # type: ignore[misc]
        yaml_implicit_resolvers = python.yaml_implicit_resolvers
        yaml_constructors = python.yaml_constructors

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _refuse_key_twice(node)
            return super().construct_mapping(node, deep=deep)

    def loader(stream: str | TextIO) -> Any:
        text = stream if isinstance(stream, str) else stream.read()
        again: str | TextIO = text
        if not isinstance(stream, str):
            again = io.StringIO(text)
            # Errors name the file.
            again.name = getattr(stream, "name", "<file>")
        return (Loader if is_for_libyaml(text) else python)(again)

    _utils.get_yaml_loader = lambda: loader


def _refuse_key_twice(node: yaml.MappingNode) -> None:
    """Raise the error that OmegaConf raises for a key that stands twice in a mapping."""
    keys = set()
    for key, _ in node.value:
        if key.tag != yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG:
            continue
        if key.value in keys:
            raise yaml.constructor.ConstructorError(
                "while constructing a mapping",
                node.start_mark,
                f"found duplicate key {key.value}",
                key.start_mark,
            )
        keys.add(key.value)
