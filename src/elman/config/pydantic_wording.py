"""One error line for what pydantic finds wrong with a setting. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from elman.base.errors import did_you_mean
from elman.config.known_keys import unknown_key, whole_section
from elman.sections.data import TEXT
from elman.sections.optim import OPTIMISERS
from elman.sections.tasks import TASKS

_BRANCHES = (*OPTIMISERS, *TASKS, TEXT, "int", "str", "list[str]")
_TYPE_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "text or a list of texts",
    "finite_number": "a finite number",
}
# Other words for a choice, which are spelled more like another one.
_SAME_VALUE = {"gpu": "cuda", "width": "dim", "layers": "depth"}
_BOUND_WORDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def first_problem(error: ValidationError, tree: Mapping[str, Any], section: str = "") -> str:
    """Return pydantic's first finding as one line; ``section`` is what was validated."""
    problem = _first(error)
    parts = [str(part) for part in ((section,) if section else ()) + problem["loc"]]
    # pydantic adds the branches of unions, which are not keys: optim.adamw.lr, data.path.str.
    parts = [p for n, p in enumerate(parts) if n == 0 or p not in _BRANCHES]
    # Positions in lists are not keys either: bench.peers.0.
    parts = [part for part in parts if not part.isdigit()]
    key, given, kind = ".".join(parts), problem.get("input"), problem["type"]
    context = problem.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(key, shown(given), tree)
    if kind == "missing":
        return f"{key}: missing; add {key}=..."
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return whole_section(key, shown(given))
    if kind == "literal_error":
        expected = str(context["expected"]).replace("True", "true").replace("False", "false")
        choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
        hint = did_you_mean(_SAME_VALUE.get(str(given).lower(), str(given)), choices)
        return f"{key}={shown(given)}: expected one of {', '.join(choices)}{hint}"
    if kind in _BOUND_WORDS:
        name, words = _BOUND_WORDS[kind]
        if kind == "less_than" and isinstance(context[name], int):
            return f"{key}={shown(given)}: must be at most {context[name] - 1}"
        return f"{key}={shown(given)}: must be {words} {_written_out(context[name])}"
    if kind == "list_type" and (section or parts[-1] == "lengths"):
        return f"{key}={shown(given)}: expected a list, as in {key}=[{shown(given)}]"
    if kind == "too_short":
        return f"{key}=[]: an empty list; name one value or more, as in {key}=[1]"
    wording = _TYPE_WORDS.get(kind, problem["msg"].removeprefix("Input should be "))
    if kind == "string_type" and isinstance(given, bool | int | float):
        wording = f'{wording}; quote it: "{_in_list(key, shown(given), problem["loc"])}"'
    return f"{key}={shown(given)}: expected {wording}"


def _first(error: ValidationError) -> Any:
    """Return pydantic's first finding; of a list, what it finds about the first wrong element."""
    problems = error.errors()
    first = problems[0]
    if not isinstance(first["input"], list):
        return first
    above = first["loc"][:-1]
    inside = (one for one in problems if one["loc"][: len(above)] == above and _element(one["loc"]))
    return next(inside, first)


def _element(loc: tuple[int | str, ...]) -> bool:
    return isinstance(loc[-1], int)


def _in_list(key: str, text: str, loc: tuple[int | str, ...]) -> str:
    """Return a quoted text as a setting's value, or as an element of it."""
    return f"{key}=['{text}',...]" if _element(loc) else f"{key}='{text}'"


def _written_out(limit: float) -> str:
    """Return a limit with all its digits: 4294967296, not 4.29497e+09."""
    return str(int(limit)) if limit == int(limit) else str(limit)


def shown(value: Any) -> str:
    """Return a value as a person types it, shortened."""
    text = "null" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."
