"""Which keys there are, and the error line for one that does not exist or that nothing here reads.

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from elman.base.errors import did_you_mean, nearest
from elman.config.meanings import fitting, meant_key, names_a_key, same_elsewhere
from elman.config.run_config import MODES, OF_SWEEPS, RunConfig
from elman.models.cells import registry
from elman.sections.data import chosen_by_file
from elman.sections.launching import LAUNCHERS, SweepConfig
from elman.sections.measuring import BenchConfig, ParityConfig
from elman.sections.model import ModelConfig
from elman.sections.modes import EvalConfig, GenerateConfig, ModelsConfig, SolveConfig
from elman.sections.optim import OPTIMISERS
from elman.sections.parallel import ParallelConfig
from elman.sections.reporting import ReportConfig
from elman.sections.section import Section
from elman.sections.tasks import TASKS
from elman.sections.training import (
    BaselineConfig,
    DataConfig,
    KernelsConfig,
    LogConfig,
    TrainConfig,
)

VOCAB_SIZE_FOLLOWS = (
    "model.vocab_size: follows the data, 256 for text and its own symbols for a task; drop it"
)
MODEL_KEYS = tuple(key for key in ModelConfig.model_fields if key != "options")
# Sections without a config group of their own: the file of their mode contains them.
_MODE_SECTIONS = ("eval", "generate", "solve", "models", "parity", "bench", "report")
_SECTIONS: dict[str, type[Section]] = {
    "train": TrainConfig,
    "kernels": KernelsConfig,
    "baseline": BaselineConfig,
    "parallel": ParallelConfig,
    "log": LogConfig,
    "eval": EvalConfig,
    "generate": GenerateConfig,
    "solve": SolveConfig,
    "models": ModelsConfig,
    "parity": ParityConfig,
    "bench": BenchConfig,
    "report": ReportConfig,
}


def known_keys(tree: Mapping[str, Any] | None = None) -> list[str]:
    """Return every dotted key of all cells, optimizers and modes, or of those in ``tree``."""
    chosen = tree or {}
    mode, cell, optim = (_chosen(chosen, path) for path in ("mode", "model.cell", "optim.name"))
    cells = [registry.cells()[cell]] if cell in registry.cells() else registry.cells().values()
    optims = [OPTIMISERS[optim]] if optim in OPTIMISERS else OPTIMISERS.values()
    keys = [f"model.{key}" for key in MODEL_KEYS]
    keys += [f"model.{name}" for declared in cells for name in declared.options]
    keys += [f"optim.{key}" for section in optims for key in section.model_fields]
    task = _chosen(chosen, "data.task")
    of_data: list[type[Section]] = [DataConfig, *TASKS.values()]
    if task in TASKS:
        of_data = [TASKS[task]]
    keys += [f"data.{key}" for part in of_data for key in part.model_fields if key != "task"]
    keys += [f"{name}.{key}" for name, part in _SECTIONS.items() for key in part.model_fields]
    launcher = _chosen(chosen, "launcher.name")
    launchers = [LAUNCHERS[launcher]] if launcher in LAUNCHERS else LAUNCHERS.values()
    of_sweeps = [f"launcher.{key}" for part in launchers for key in part.model_fields]
    of_sweeps += [f"sweep.{key}" for key in SweepConfig.model_fields]
    of_sweeps += ["benchmark.only"]
    read = MODES[mode].reads if mode in MODES else {key.split(".")[0] for key in keys}
    read_keys = dict.fromkeys(key for key in keys if key.split(".")[0] in read)
    return ["mode", *read_keys, *dict.fromkeys(of_sweeps)]


def with_mode(override: str, mode: str = "train") -> str:
    """Return an override after the mode that reads it, if it is of a mode and not of ``mode``."""
    section = override.partition(".")[0]
    return f"mode={section} {override}" if section in set(MODES) - {mode} else override


def is_switch(key: str) -> bool:
    """Whether a setting is true or false."""
    section, _, name = key.partition(".")
    part = SweepConfig if section == "sweep" else _SECTIONS.get(section)
    return part is not None and isinstance(part.model_fields[name].default, bool)


# Groups have short names, in which one wrong letter weighs more.
_GROUP_LIKE = 0.6


def unknown_key(key: str, value: str, tree: Mapping[str, Any] | None = None) -> str:
    """Return the error for a key that composition does not know, given the tree's choices.

    Args:
        key: Dotted key or group as the user typed it, without ``+``.
        value: Its value as typed.
        tree: The sections composed without that key, if they compose.
    """
    section, _, name = key.partition(".")
    if unread := unread_key(key, (tree or {}).get("mode", "train")):
        return unread
    if key == "data.task":
        return chosen_by_file(value)
    if key in known_keys():
        return _known_elsewhere(key, section, tree or {})
    if key in RunConfig.model_fields:
        return whole_section(key, value)
    if section == "model" and name and (cell := _chosen(tree or {}, "model.cell")):
        return not_an_option(name, cell)
    if not name:
        groups = [group for group in RunConfig.model_fields if group not in _MODE_SECTIONS]
        # `modle=e1` means a group; `steps=9` a key, though it looks like `sweep`.
        group = nearest(key, [*groups, *OF_SWEEPS, "benchmark"], _GROUP_LIKE)
        if group and not names_a_key(key, known_keys(tree)):
            return f"{key}={value}: no such setting; did you mean {group}={value}?"
    meant = meant_key(key, known_keys(tree)) or meant_key(key, known_keys())
    hint = "`elman --cfg job` prints every setting"
    if meant is not None:
        best, fits = meant
        told = f"{fitting(best, value)}={value if fits else '...'}"
        hint = f"did you mean {with_mode(told, (tree or {}).get('mode', 'train'))}?"
    return f"{key}={value}: no such setting; {hint}"


def _known_elsewhere(key: str, section: str, tree: Mapping[str, Any]) -> str:
    if section == "optim":
        owners = [name for name, part in OPTIMISERS.items() if key[6:] in part.model_fields]
        return (
            f"{key}: optim={_chosen(tree, 'optim.name')} does not read it; "
            f"drop it or choose optim={' or optim='.join(owners)}"
        )
    if section == "data":
        return _of_another_task(key, tree)
    if section == "launcher":
        owners = [name for name, part in LAUNCHERS.items() if key[9:] in part.model_fields]
        return (
            f"{key}: launcher={_chosen(tree, 'launcher.name')} does not read it; "
            f"drop it or choose launcher={' or launcher='.join(owners)}"
        )
    if section == "model" and (cell := _chosen(tree, "model.cell")):
        return not_an_option(key.removeprefix("model."), cell)
    return f"{key}: not a setting of the groups chosen here; `elman --cfg job` prints those"


def _of_another_task(key: str, tree: Mapping[str, Any]) -> str:
    """Return the error for a setting of text with a task, or of another task, or with text."""
    name, task = key.removeprefix("data."), _chosen(tree, "data.task")
    owners = [one for one, part in TASKS.items() if name in part.model_fields]
    owners = ["default", *owners] if name in DataConfig.model_fields else owners
    chosen = "text" if task is None else f"data={task}"
    return f"{key}: {chosen} does not read it; drop it or choose data={' or data='.join(owners)}"


def whole_section(section: str, value: str) -> str:
    """Return the error for a value given to a whole section."""
    example = next(known for known in known_keys() if known.startswith(f"{section}."))
    return (
        f"{section}={value}: {section} is a group of settings; set one of them, as in {example}=..."
    )


def unread_key(key: str, mode: Any) -> str | None:
    """Return the error line if a known mode does not read the section of ``key``."""
    section = re.split(r"[./@]", key)[0]
    readers = [name for name, declared in MODES.items() if section in declared.reads]
    if mode not in MODES or not readers or mode in readers:
        return None
    # Several modes read what training reads; to name them all would hide the usual one.
    usual = ["train"] if "train" in readers else readers
    ways = " or ".join(f"mode={reader}" for reader in usual)
    drop = f"drop it or use {ways}" if mode != "train" else f"add {ways} or drop it"
    return f"{key}: read only with {ways}, not with mode={mode}; {drop}"


def not_an_option(name: str, cell_name: str) -> str:
    if name == "vocab_size":
        return VOCAB_SIZE_FOLLOWS
    cell = registry.cell(cell_name)
    read = (*MODEL_KEYS, *cell.options)
    same = [key for key in same_elsewhere(name, "model") if key in read]
    hint = f" (did you mean {same[0]}?)" if same else did_you_mean(name, read)
    return (
        f"model.{name}: cell {cell_name} does not read it{hint}; "
        f"its options: {', '.join(cell.options)}"
    )


def _chosen(tree: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or None."""
    node: Any = tree
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
