"""Adds the checkpoint's model to ``elman train.init_from=<run>``, unless the command names one.

The command then stands for ``elman model=<name> model.<setting>=... train.init_from=<run>``, in a
sweep too. It has the training recipe of that model, and each job's command names the model. If its
tokens are no bytes, ``data.tokenizer`` is added in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from elman.base import run_files
from elman.base.errors import UserError
from elman.cli.flags import Arguments

if TYPE_CHECKING:
    from elman.config.catalog import Place
    from elman.config.run_config import RunConfig
    from elman.sections.model import ModelConfig

_KEY = "train.init_from"
# Keys that name other models than the checkpoint's, or a run that has its own already.
_OTHER = ("model", "benchmark", "train.resume", "sweep.resume", "sweep.add", "+model")


def with_checkpoint_model(arguments: Arguments) -> Arguments:
    """Return the command with the model of the checkpoint that it starts from.

    Raises:
        UserError: it starts from several models, or no model file has the checkpoint's cell.
    """
    keys = {text.partition("=")[0] for text in arguments.overrides}
    mode = next((text for text in arguments.overrides if text.startswith("mode=")), "mode=train")
    if _KEY not in keys or keys & set(_OTHER) or mode != "mode=train":
        return arguments
    places = [text for text in arguments.overrides if text.startswith(f"{_KEY}=")]
    runs = {str(place): _saved(place) for text in places for place in _values(text)}
    known = {place: run for place, run in runs.items() if run is not None}
    if not known:
        return arguments  # whoever reads the place next says what is wrong with it
    first, run = next(iter(known.items()))
    for place, other in known.items():
        if difference := run.model.difference(other.model):
            raise UserError(
                f"{_KEY}: the models of {first} and {place} differ ({difference}); type a "
                "command for each"
            )
    chosen = _chosen(run.model, arguments)
    if not keys & {"data", "data.tokenizer"}:
        chosen += _tokenizer(first)
    return replace(arguments, overrides=[*chosen, *arguments.overrides])


def _values(override: str) -> list[str]:
    """Return the places that an override names; none if it cannot be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    try:
        parsed = OverridesParser.create().parse_override(override)
        if parsed.is_sweep_override():
            return [str(value).strip("'\"") for value in parsed.sweep_string_iterator()]
        value = parsed.value()
    except Exception:  # Hydra says what is wrong with it
        return []
    return [] if value is None else [str(getattr(value, "text", value))]


def _saved(place: str) -> RunConfig | None:
    """Return the settings of a run folder or a checkpoint; None if there are none to read."""
    from elman.base.yaml_file import YamlError, read_yaml
    from elman.config.validate import validate

    path = Path(place).expanduser()
    for folder in (path, path.parent) if path.name == run_files.CHECKPOINTS else (path,):
        try:
            return validate(read_yaml(folder / run_files.CONFIG))
        except (YamlError, UserError):
            continue
    return None


def _tokenizer(place: str) -> list[str]:
    """Return the override that chooses the tokenizer of a run or a checkpoint; none for bytes."""
    from elman.base.quoting import quoted

    path = Path(place).expanduser()
    step = f"step-*/{run_files.TOKENIZER}"
    for pattern in (run_files.TOKENIZER, step, f"{run_files.CHECKPOINTS}/{step}"):
        if files := sorted(path.glob(pattern)):
            return [f"data.tokenizer={quoted(str(files[-1].absolute()))}"]
    return []


def _chosen(model: ModelConfig, arguments: Arguments) -> list[str]:
    """Return the overrides that choose a model."""
    from elman.base.quoting import as_override, quoted
    from elman.config.catalog import group_files, listed_models

    places = _places(arguments)
    names = group_files("model", places)
    if model.name in names:
        (base,) = listed_models([model.name], places)
    else:
        listed = listed_models(names, places)
        of_cell = (one for one in listed if one.config and one.config.cell == model.cell)
        same = [one for one in of_cell if one.config and not one.config.mixed]
        if not same:
            raise UserError(
                f"{_KEY}: its model {model.name} has the cell {model.cell}, and no model file "
                "here has it; name the folder of its file with --config-dir"
            )
        base = same[0]
    if base.config is None:
        raise UserError(f"model={base.name}: {base.problem}")
    before = base.config.settings()
    changed = [
        f"model.{key}={as_override(value)}"
        for key, value in model.settings().items()
        if before.get(key) != value and key != "vocab_size"  # which follows the data
    ]
    name = base.name if re.fullmatch(r"[\w.-]+", base.name) else quoted(base.name)
    return [f"model={name}", *changed]


def _places(arguments: Arguments) -> Sequence[Place]:
    """Return the places where this command finds YAML files."""
    from elman.config.catalog import SHIPPED
    from elman.config.compose import compose_tree
    from elman.runs.prepare import config_places

    search = [text for text in arguments.overrides if text.startswith("hydra.searchpath=")]
    if (folder := arguments.flags.get("--config-dir")) is not None:
        search.append(f"hydra.searchpath=['file://{Path(folder).absolute()}']")
    return config_places(compose_tree(search[-1:])) if search else (SHIPPED,)
