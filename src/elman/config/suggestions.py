"""Which keys and choices there are, and which of them a mistyped word or flag was meant to be.

Imports no torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin

from elman.base.errors import nearest, suggest
from elman.config import synonyms
from elman.config.model_files import MODEL, model_files
from elman.config.run_config import MODES, OF_SWEEPS, RunConfig
from elman.models.cells import registry
from elman.sections.launching import LAUNCHERS, SweepConfig
from elman.sections.model import ModelConfig
from elman.sections.optim import OPTIMIZERS
from elman.sections.section import Section
from elman.sections.tasks import TASKS
from elman.sections.training import DataConfig
from elman.sections.tune import TuneConfig

MODEL_KEYS = tuple(key for key in ModelConfig.model_fields if key != "options")
VARIANTS: dict[str, tuple[str, Mapping[str, type[Section]]]] = {
    "optim": ("name", OPTIMIZERS),
    "data": ("task", {"default": DataConfig, **TASKS}),
    "launcher": ("name", LAUNCHERS),
}
"""Groups whose choice decides which settings there are: the key that names it, and the choices."""
_OF_SWEEPS: dict[str, type[Section]] = {"sweep": SweepConfig, "tune": TuneConfig}
# The setting that a word after the name of a mode is meant for.
_OF_MODE = {
    "eval": "eval.checkpoint",
    "export": "export.checkpoint",
    "generate": "generate.checkpoint",
    "probe": "probe.checkpoint",
    "report": "report.dir",
    "solve": "solve.params",
    "verdict": "verdict.a",
}
_LISTED_BY = {
    "model": "`elman mode=models` lists them",
    "benchmark": "`elman mode=suites` lists them",
    "data": "`elman mode=tasks` lists tasks, and data.path=<file> names text",
}
# Below these shares of equal letters a likeness is chance; measured on names alone.
_LIKE, _SECTION_LIKE = 0.7, 0.6


def known_keys(tree: Mapping[str, Any] | None = None) -> list[str]:
    """Return every dotted key of all cells, optimizers and modes, or of those in ``tree``."""
    tree = tree or {}
    mode = tree.get("mode")
    read = [name for name in RunConfig.model_fields if name != "mode"]
    if mode in MODES:
        read = [name for name in read if name in MODES[mode].reads]
    keys = [f"{name}.{key}" for name in (*read, *OF_SWEEPS) for key in _keys(name, tree)]
    return ["mode", *dict.fromkeys(keys), "benchmark.only"]


def _keys(section: str, tree: Mapping[str, Any]) -> Iterator[str]:
    if section == "model":
        cells = registry.cells()
        cell = chosen_in(tree, "model.cell")
        yield from MODEL_KEYS
        for declared in [cells[cell]] if cell in cells else cells.values():
            yield from declared.options
    elif section in VARIANTS:
        _, variants = VARIANTS[section]
        chosen = variant(section, tree)
        for part in [variants[chosen]] if chosen in variants else variants.values():
            yield from (key for key in part.model_fields if key != "task")
    else:
        for key, field in _class(section).model_fields.items():
            yield key
            for inner in get_args(field.annotation):  # tune.ladder, which may be None
                if isinstance(inner, type) and issubclass(inner, Section):
                    yield from (f"{key}.{name}" for name in inner.model_fields)


def _class(section: str) -> type[Section]:
    """Return the type of a section of which there is one form."""
    if section in _OF_SWEEPS:
        return _OF_SWEEPS[section]
    annotation = RunConfig.model_fields[section].annotation
    found: type[Section] = next(
        part
        for part in (annotation, *get_args(annotation))
        if isinstance(part, type) and issubclass(part, Section)
    )
    return found


def takes_list(key: str) -> bool:
    """Return whether a dotted key may have a list as its value."""
    section, _, name = key.partition(".")
    if section in VARIANTS:
        classes: Sequence[type[Section]] = list(VARIANTS[section][1].values())
    else:
        known = section in {*RunConfig.model_fields, *_OF_SWEEPS} - {"mode", "model"}
        classes = [_class(section)] if known and name else []
    fields = [one.model_fields[name] for one in classes if name in one.model_fields]
    return any(_has_list(field.annotation) for field in fields)


def _has_list(annotation: Any) -> bool:
    return get_origin(annotation) in (list, tuple) or any(map(_has_list, get_args(annotation)))


def chosen_in(tree: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of a tree, or None."""
    node: Any = tree
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def variant(group: str, tree: Mapping[str, Any]) -> str:
    """Return the choice of a group of ``VARIANTS`` in a tree, or an empty text."""
    chosen = chosen_in(tree, f"{group}.{VARIANTS[group][0]}")
    return "default" if group == "data" and group in tree and chosen is None else str(chosen or "")


def with_mode(override: str, mode: str = "train") -> str:
    """Return an override after the mode that reads it, if it is of a mode and not of ``mode``."""
    section = override.partition(".")[0]
    return f"mode={section} {override}" if section in set(MODES) - {mode} else override


def meant_key(key: str, keys: Sequence[str]) -> tuple[str, bool] | None:
    """Return the key that was meant, and whether the typed value fits it; None if unknown.

    Args:
        key: Dotted key as typed, or a name alone.
        keys: Every dotted key that exists.
    """
    section, _, name = key.rpartition(".")
    word = name.lower()
    if not section and word in synonyms.RUN_FOLDER:
        return "hydra.run.dir", True
    same = [known for known in synonyms.KEYS.get(word, ()) if known in keys]
    of_section = [known for known in keys if known.rpartition(".")[0] == section]
    named = [known for known in keys if known.rpartition(".")[2] == name]
    # In tune.ladder, bytes is bytes_per_param and not train.bytes.
    begun = [known for known in of_section if known.startswith(f"{key}_") and "." in section]
    for found in (
        [known for known in same if known in of_section],
        begun,
        named,
        same,
        _alike(name, of_section),
        _in_a_section_alike(section, name, keys),
    ):
        if found:
            return found[0], True
    others = [known for known in synonyms.KEYS_OF_ANOTHER_UNIT.get(word, ()) if known in keys]
    return (others[0], False) if others else None


def _alike(name: str, keys: Sequence[str]) -> list[str]:
    """Return the key whose name is spelled most like ``name``."""
    by_name = {known.rpartition(".")[2]: known for known in keys}
    best = nearest(name, by_name, _LIKE)
    return [by_name[best]] if best else []


def _in_a_section_alike(section: str, name: str, keys: Sequence[str]) -> list[str]:
    """Return the meant key if only the section's name is mistyped."""
    sections = dict.fromkeys(known.rpartition(".")[0] for known in keys if "." in known)
    best = nearest(section, sections, _SECTION_LIKE) if section else None
    if best is None or best == section:
        return []
    inside = [known for known in keys if known.rpartition(".")[0] == best]
    exact = [known for known in inside if known.rpartition(".")[2] == name]
    return exact or _alike(name, inside)


def names_a_key(name: str, keys: Sequence[str]) -> bool:
    """Return whether ``name``, typed without its section, is a key's name, here or elsewhere."""
    elsewhere = {*synonyms.KEYS, *synonyms.KEYS_OF_ANOTHER_UNIT, *synonyms.RUN_FOLDER}
    return name.lower() in elsewhere or any(known.rpartition(".")[2] == name for known in keys)


def key_override(key: str, value: str, keys: Sequence[str] = ()) -> str | None:
    """Return the override that was meant by a mistyped key, its mode before it; or None.

    Args:
        key: Dotted key as typed, or a name alone.
        value: Its value; empty if none was typed.
        keys: Keys that count before all others.
    """
    meant = meant_key(key, keys) or meant_key(key, known_keys())
    if meant is None:
        return None
    known, fits = meant
    if known == "launcher.gpus" and value.isdigit() and int(value) > 1:
        known = "launcher.gpus_per_job"  # gpus=2 counts GPUs, gpus=[0,1] names them
    return f"{known}={value if fits and value else '...'}"


def group_of(word: str) -> str:
    """Return the group that a word means, or the word."""
    return synonyms.GROUPS.get(word.lower(), (word,))[0]


def group_override(word: str, value: str) -> str | None:
    """Return the choice that ``--word value`` or ``word value`` means, if it is one of a group."""
    group = group_of(word)
    if group not in groups():
        return None
    if not value or value == "...":
        return f"{group}=..."
    known = choices(group)
    if group == "data" and value not in known:
        return f"data.path={value}"
    exact = value if value in known else choice_named(group, value, known)
    like = 0.5 if group == "mode" else _LIKE
    best = exact or (None if group == "model" else nearest(value, known, like))
    return f"{group}={best or value}"


def groups() -> list[str]:
    """Return the groups from which a command chooses."""
    folder = Path(str(files("elman.conf")))
    return sorted(path.name for path in folder.iterdir() if any(path.glob("*.yaml")))


def choices(group: str) -> list[str]:
    """Return the choices of a group that are shipped."""
    if group == MODEL:
        return sorted(model_files())
    return sorted(path.stem for path in Path(str(files("elman.conf")), group).glob("*.yaml"))


def choice_named(group: str, name: str, known: Sequence[str]) -> str | None:
    """Return the choice that a word means exactly: in other letters, elsewhere, or as a label."""
    by_lower = {one.lower(): one for one in known}
    if found := by_lower.get(name.lower()):
        return found
    word = re.sub("[-_]", "", name.lower()) if group == "model" else name.lower()
    (found,) = synonyms.CHOICES.get(group, {}).get(word, ("",))
    if found in known:
        return found
    return _model_labeled(name, known) if group == "model" else None


def _model_labeled(label: str, known: Sequence[str]) -> str | None:
    """Return the model whose file names a published label, like E88_h8n32, in its first line."""
    if not re.search(r"[A-Za-z]\w*\d", label):
        return None  # a word of prose is no label
    whole = re.compile(rf"(?<![\w-])(?<!suite ){re.escape(label)}(?![\w-])", re.IGNORECASE)
    for name, file in sorted(model_files().items()):
        with file.open(encoding="utf-8") as stream:
            if whole.search(stream.readline()) and name in known:
                return name
    return None


def flag_hint(word: str, value: str) -> str | None:
    """Return what to type for a flag that elman does not have; None if nothing is known.

    Args:
        word: The flag as typed, without its value.
        value: Its value, or an empty text.
    """
    name = word.lstrip("-")
    key = name.replace("-", "_")
    for known in (name, key.lower()):
        if reason := synonyms.FLAGS_WITHOUT_NEED.get(known):
            return reason
        if meant := synonyms.FLAGS.get(known):
            return suggest(meant)
    if chosen := group_override(key, value):
        return f"choices are group=name: {suggest(chosen)}"
    override = key_override(key, value) if len(key) > 1 else None
    if override is None:
        return None
    if not value and _is_switch(override.partition("=")[0]):
        override = override.replace("...", "true")
    return f"settings are key=value: {suggest(with_mode(override))}"


def _is_switch(key: str) -> bool:
    """Whether a setting is true or false."""
    section, _, name = key.partition(".")
    if section in ("hydra", "model", *VARIANTS):
        return False
    return isinstance(_class(section).model_fields[name].default, bool)


def word_hint(word: str, following: str = "") -> str:
    """Return what is wrong with a word that is no ``key=value``, and what to type.

    Args:
        word: As typed.
        following: The word after it, if that is no ``key=value`` either.
    """
    hint = _instead_of_word(word, following)
    if hint is None and (meant := next(_meant_by_word(word, following), None)):
        hint = suggest(meant)
    return f"{word}: expected key=value" + (f"; {hint}" if hint else ", as in train.steps=100")


def _instead_of_word(word: str, following: str) -> str | None:
    """Return what to do if a word names a command, a file of settings, or a group alone."""
    key = word.lower().replace("-", "_")
    if hint := synonyms.COMMANDS.get(key) or synonyms.COMMANDS.get(Path(word).suffix):
        return hint
    group = group_of(key)
    if following or key in MODES or group not in groups():
        return None
    return f"type {group}=<name>; {listed_by(group)}"


def _meant_by_word(word: str, following: str) -> Iterator[str]:
    """Yield what a word means, the likeliest first."""
    key = word.lower().replace("-", "_")
    if mode := choice_named("mode", key, list(MODES)):
        setting = _OF_MODE.get(mode) if following else None
        yield f"mode={mode}" + (f" {setting}={following}" if setting else "")
    if chosen := group_override(key, following):
        yield chosen
    yield from (f"{group}={word}" for group in ("benchmark", "data") if word in choices(group))
    if model := choice_named("model", word, choices("model")):
        yield f"model={model}"
    if meant := meant_key(word, known_keys()):
        yield f"{meant[0]}=..."
    if os.path.lexists(os.path.expanduser(word)) or re.search(r"[/*]|\.\w+$", word):
        yield f"data.path={word}"
    for group in ("mode", "model", "benchmark"):
        if best := nearest(word, choices(group), _LIKE):
            yield f"{group}={best}"


def listed_by(group: str) -> str:
    """Return what lists the choices of a group."""
    return _LISTED_BY.get(group, "`elman --help` lists them")
