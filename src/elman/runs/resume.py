"""``train.resume=<run folder>``: the configuration of that run plus the overrides named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.config.validate import validate
from elman.runs.folder import read_config

# Settings that a run reads only at its first step.
_FIRST_STEP_ONLY = ("train.seed", "train.data_seed", "train.init_from")
# Settings that define a run's numbers, with their values in runs older than them.
_DEFINING = {"data.reset_at_documents": False}


def is_resume(config: RunConfig) -> bool:
    """Whether this is an earlier run, continued."""
    return config.mode == "train" and config.train.resume is not None


def resumed_folder(config: RunConfig) -> Path:
    """Return the folder of the run to continue."""
    assert config.train.resume is not None
    return Path(config.train.resume).expanduser().absolute()


def resumed_config(config: RunConfig, tree: Mapping[str, Any], named: frozenset[str]) -> RunConfig:
    """Return the stored configuration with the named settings taken from ``tree``.

    Args:
        config: The configuration as composed; only ``train.resume`` matters.
        tree: The composed tree as plain containers.
        named: Dotted keys that the user named.

    Raises:
        UserError: the folder is no run folder, or a named setting cannot change in a run.
    """
    folder = resumed_folder(config)
    stored = read_config(folder, "train.resume")
    for key in sorted(named - {"mode"}):
        _refuse_fixed(key, folder)
        section, _, name = key.partition(".")
        if not isinstance(stored.get(section), Mapping):
            raise UserError(f"{folder}: its config.yaml has no section {section}; restore the file")
        _refuse_other(key, stored[section].get(name, _DEFINING.get(key)), _at(tree, key), folder)
        stored[section] = {**stored[section], name: _at(tree, key)}
    return validate(stored, named)


def _refuse_fixed(key: str, folder: Path) -> None:
    section = re.split(r"[./@]", key)[0]
    if "." not in key or section == "model":
        raise UserError(
            f"{key}: cannot change in a resumed run; drop it, or start a new run from those "
            f"weights with train.init_from={folder}"
        )
    if key in _FIRST_STEP_ONLY:
        raise UserError(f"{key}: read only when a run starts; drop it to resume")


def _refuse_other(key: str, before: Any, wanted: Any, folder: Path) -> None:
    """Raise UserError if a setting would change what the numbers of a run mean."""
    if key in _DEFINING and wanted != before:
        raise UserError(
            f"{key}={str(wanted).lower()}: the run to resume has {str(before).lower()}, and its "
            "numbers before and after would differ in meaning; drop it, or start a new run from "
            f"those weights with train.init_from={folder}"
        )


def _at(tree: Mapping[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        node = node[part]
    return node
