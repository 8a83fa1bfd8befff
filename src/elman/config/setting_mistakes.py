"""One error line for a setting that does not exist, that nothing reads, or that has a wrong value.

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from elman.base.errors import did_you_mean, nearest, suggest
from elman.config import synonyms
from elman.config.run_config import MODES, OF_SWEEPS, RunConfig
from elman.config.suggestions import (
    MODEL_KEYS,
    VARIANTS,
    chosen_in,
    key_override,
    known_keys,
    names_a_key,
    variant,
    with_mode,
)
from elman.models.cells import registry
from elman.sections.data import TEXT, chosen_by_file
from elman.sections.optim import OPTIMIZERS
from elman.sections.tasks import TASKS

VOCAB_SIZE_FOLLOWS = (
    "model.vocab_size: follows the data: 256 for bytes, else the number of its tokens or symbols; "
    "drop it"
)
# Groups have short names, in which one wrong letter weighs more.
_GROUP_LIKE = 0.6
# What pydantic adds to a place for the members of a union.
_BRANCHES = (*OPTIMIZERS, *TASKS, TEXT, "bool", "int", "str", "list[str]")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "text or a list of texts",
    "finite_number": "a finite number",
}
_NUMBERS = ("int_type", "float_type")
_BOUND_WORDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def unknown_key(key: str, value: str, tree: Mapping[str, Any] | None = None) -> str:
    """Return the error for a key that composition does not know, given the tree's choices.

    Args:
        key: Dotted key or group as the user typed it, without ``+``.
        value: Its value as typed.
        tree: The sections composed without that key, if they compose.
    """
    tree = tree or {}
    section, _, name = key.partition(".")
    mode = tree.get("mode", "train")
    if unread := unread_key(key, mode):
        return unread
    if key == "data.task":
        return chosen_by_file(value)
    if key in RunConfig.model_fields:
        return whole_section(key, value)
    if section == "model" and name and (cell := chosen_in(tree, "model.cell")):
        return not_an_option(name, cell, (tree.get("model") or {}).get("layers"))
    if key in known_keys():
        return _of_another_choice(key, tree)
    if not name:
        # `modle=e1` means a group; `steps=9` a key, though it looks like `sweep`.
        group = nearest(key, [*_groups(), *OF_SWEEPS, "benchmark"], _GROUP_LIKE)
        if group and not names_a_key(key, known_keys(tree)):
            return f"{key}={value}: no such setting; {suggest(f'{group}={value}')}"
    override = key_override(key, value, known_keys(tree))
    hint = "`elman --cfg job` prints every setting"
    if override is not None:
        hint = suggest(with_mode(override, mode))
    return f"{key}={value}: no such setting; {hint}"


def _groups() -> list[str]:
    """Return the sections that are groups: those of a mode are in the mode's own file."""
    return [name for name, field in RunConfig.model_fields.items() if field.default is not None]


def _of_another_choice(key: str, tree: Mapping[str, Any]) -> str:
    """Return the error for a key that exists, but not with the choices of a command."""
    group, _, name = key.partition(".")
    if group == "tune":
        return f"{key}: read only where something is tuned; add tune=rates, or drop it"
    if group not in VARIANTS:
        return f"{key}: not a setting of the groups chosen here; `elman --cfg job` prints those"
    owners = [
        f"{group}={one}" for one, part in VARIANTS[group][1].items() if name in part.model_fields
    ]
    chosen = f"{group}={variant(group, tree)}"
    return f"{key}: {chosen} does not read it; drop it or choose {' or '.join(owners)}"


def whole_section(section: str, value: str) -> str:
    """Return the error for a value given to a whole section."""
    inside = (known for known in known_keys() if known.startswith(f"{section}."))
    example = next(inside, f"{section}.<key>")
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


def not_an_option(name: str, cell_name: str, layers: Any = None) -> str:
    """Return the error for a key of a model that its cell does not read.

    Args:
        name: The key.
        cell_name: The model's cell, which is known.
        layers: ``model.layers`` as typed: another cell there may have the option.
    """
    if name == "vocab_size":
        return VOCAB_SIZE_FOLLOWS
    for one in layers if isinstance(layers, list) else ():
        typed = one.get("cell") if isinstance(one, Mapping) else one
        other = registry.cells().get(str(typed).replace("-", "_"))
        if other is not None and name in other.options:
            default = other.options[name].default
            return (
                f"model.{name}: cell {cell_name} does not read it; options of other cells stand "
                f"in their entries of model.layers, as in {{cell: {typed}, {name}: {default}}}"
            )
    cell = registry.cell(cell_name)
    read = (*MODEL_KEYS, *cell.options)
    same = [key.removeprefix("model.") for key in synonyms.KEYS.get(name.lower(), ())]
    best = next((key for key in same if key in read), None) or nearest(name, read)
    hint = f" ({suggest(best)})" if best else ""
    return (
        f"model.{name}: cell {cell_name} does not read it{hint}; "
        f"its options: {', '.join(cell.options)}"
    )


def first_problem(error: ValidationError, tree: Mapping[str, Any], section: str = "") -> str:
    """Return pydantic's first finding as one line; ``section`` is what was validated."""
    problem = _first(error)
    parts = [str(part) for part in ((section,) if section else ()) + problem["loc"]]
    # Neither the branches of unions nor positions in lists are keys: optim.adamw.lr, bench.peers.0.
    parts = [p for n, p in enumerate(parts) if n == 0 or not (p in _BRANCHES or p.isdigit())]
    key, value, kind = ".".join(parts), problem.get("input"), problem["type"]
    if kind == "extra_forbidden":
        return unknown_key(key, shown(value), tree)
    if kind == "missing":
        return f"{key}: missing; add {key}=..."
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return whole_section(key, shown(value))
    if kind == "too_short":
        return f"{key}=[]: an empty list; name one value or more, as in {key}=[1]"
    return f"{key}={shown(value)}: {_expected(problem, key, bool(section))}"


def _expected(problem: Any, key: str, of_section: bool) -> str:
    """Return what a value had to be."""
    value, kind, context = problem.get("input"), problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        expected = str(context["expected"]).replace("True", "true").replace("False", "false")
        choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
        hint = did_you_mean(synonyms.VALUES.get(str(value).lower(), str(value)), choices)
        return f"expected one of {', '.join(choices)}{hint}"
    if kind in _BOUND_WORDS:
        name, words = _BOUND_WORDS[kind]
        limit = context[name]
        if kind == "less_than" and isinstance(limit, int):
            return f"must be at most {limit - 1}"
        # With all its digits: 4294967296, not 4.29497e+09.
        return f"must be {words} {int(limit) if limit == int(limit) else limit}"
    if kind == "list_type" and (of_section or key.endswith(".lengths")):
        return f"expected a list, as in {key}=[{shown(value)}]"
    wording = _TYPE_WORDS.get(kind, problem["msg"].removeprefix("Input should be "))
    if kind == "string_type" and isinstance(value, bool | int | float):
        quoted = f"['{shown(value)}',...]" if _in_list(problem) else f"'{shown(value)}'"
        wording = f'{wording}; quote it: "{key}={quoted}"'
    if kind in _NUMBERS and isinstance(value, str) and _is_number(value):
        wording = f"{wording}, and quotes make a text; drop the quotes"
    return f"expected {wording}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first(error: ValidationError) -> Any:
    """Return pydantic's first finding; of a list, what it finds about the first wrong element."""
    problems = error.errors()
    first = problems[0]
    if not isinstance(first["input"], list):
        return first
    above = first["loc"][:-1]
    inside = (one for one in problems if one["loc"][: len(above)] == above and _in_list(one))
    return next(inside, first)


def _in_list(problem: Any) -> bool:
    return isinstance(problem["loc"][-1], int)


def shown(value: Any) -> str:
    """Return a value as a person types it, shortened."""
    text = "null" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."
