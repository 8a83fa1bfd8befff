"""``train.resume=<run folder>``: the configuration of that run plus the overrides named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.exit_status import RunStatus
from elman.config.newer_settings import with_newer
from elman.config.run_config import RunConfig, flatten
from elman.config.validate import validate
from elman.data.matching import anchored_tokenizer
from elman.runs.folder import read_config, restoring
from elman.runs.state import read_run_result
from elman.sections.training import BPE, with_token_count

# Settings that a run reads only at its first step.
_FIRST_STEP_ONLY = ("train.seed", "train.data_seed", "train.init_from")
# Settings that define a run's numbers.
_DEFINING = ("data.reset_at_documents", "data.tokenizer")


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
    before = with_newer(stored)
    for key in sorted(named - {"mode"}):
        _refuse_fixed(key, folder)
        section, _, name = key.partition(".")
        if not isinstance(stored.get(section), Mapping):
            missing = f"{folder}: its {run_files.CONFIG} has no section {section}"
            raise UserError(f"{missing}; {restoring(folder)}")
        _refuse_other(key, _meaning(before, key), _meaning(tree, key), folder)
        stored[section] = {**stored[section], name: _at(tree, key)}
    try:
        return validate(stored, named)
    except UserError as error:
        if str(error).startswith(tuple(named)):
            raise
        raise UserError(f"{folder / run_files.CONFIG}: {error}") from None


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
        now, then = (str(v).lower() if isinstance(v, bool) else v for v in (wanted, before))
        raise UserError(
            f"{key}={now}: the run to resume has {then}, and its "
            "numbers before and after would differ in meaning; drop it, or start a new run from "
            f"those weights with train.init_from={folder}"
        )


def refuse_edited(now: RunConfig, before: RunConfig, folder: Path, saved: Path) -> None:
    """Raise UserError if config.yaml was edited where a run cannot change.

    Args:
        now: The configuration of the resumed run.
        before: That under which its newest checkpoint was saved.
        folder: The run folder.
        saved: The checkpoint, which has a copy of its configuration.
    """
    trees = [flatten(config) for config in (before, now)]
    fixed = (*_FIRST_STEP_ONLY, *_DEFINING, "optim.name")
    pairs = [(key, *(_at(tree, key) for tree in trees)) for key in fixed]
    found = [f"{key} {was} and {wanted}" for key, was, wanted in pairs if was != wanted]
    # The vocabulary follows the data, whose own check says more.
    model = now.model.with_vocabulary(before.model.vocab_size)
    if difference := before.model.difference(model):
        found.append(f"model: {difference}")
    if found:
        raise UserError(
            f"{folder / run_files.CONFIG}: was edited where a run cannot change "
            f"({'; '.join(found)}); type cp {shlex.quote(str(saved / run_files.CONFIG))} "
            f"{shlex.quote(str(folder))}, or start a new run from those weights with "
            f"train.init_from={folder}"
        )


def refuse_without_checkpoints(folder: Path) -> None:
    """Raise UserError if a run without checkpoints cannot start again from its first step.

    It had saved some, which were removed, or it has ended with ``train.checkpoints=false``.
    """
    if not with_newer(read_config(folder, "train.resume"))["train"]["checkpoints"]:
        result = read_run_result(folder)
        if result is not None and result.status is RunStatus.OK:
            raise UserError(
                f"{folder}: it has ended and saved no checkpoint (train.checkpoints=false); start "
                "a new run"
            )
        return
    for path in (folder / run_files.RESULT, *run_files.earlier_results(folder)):
        result = read_run_result(folder, path.name)
        if result is None or result.status not in (RunStatus.OK, RunStatus.INTERRUPTED):
            continue
        if result.error is None and result.steps:
            raise UserError(
                f"{folder}: its checkpoints are gone ({path.name} tells of {result.steps} "
                f"steps); put them back below {run_files.CHECKPOINTS}/, or start a new run"
            )


def _meaning(tree: Mapping[str, Any], key: str) -> Any:
    """Return a setting's value; that of ``data.tokenizer`` with its number or its folder."""
    if key != "data.tokenizer" or (setting := _at(tree, key)) is None:
        return _at(tree, key)
    data = with_token_count(tree["data"])
    if data["tokenizer"] == BPE:
        return f"{BPE}:{data['vocab_size']}"
    return anchored_tokenizer(str(setting))


def _at(tree: Mapping[str, Any], key: str) -> Any:
    """Return a setting's value; None if its section has no such key, as that of a task may."""
    node: Any = tree
    for part in key.split("."):
        node = node.get(part)
    return node
