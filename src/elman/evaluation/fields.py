"""The fields of a result file: what each holds, its unit, and the definition of its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict


def _finite(value: Any) -> Any:
    """Return a number, or None if it is not finite: JSON has no such numbers, Python reads them."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(_finite)]
Whole = Annotated[int | None, BeforeValidator(_finite)]
_DEFINED = "defined"


def fact(text: str, unit: str | None = None, default: Any = None) -> Any:
    """Return a field that says what a run was, not what it measured.

    Args:
        text: What it is.
        unit: Its unit.
        default: Its value for a run that does not have it.
    """
    extra: JsonDict = {"unit": unit} if unit else {}
    return Field(default, description=text, json_schema_extra=extra)


def number(text: str, unit: str | None = None, default: Any = None) -> Any:
    """Return a field whose definition each run writes beside it; arguments as of :func:`fact`."""
    extra: JsonDict = {_DEFINED: True, **({"unit": unit} if unit else {})}
    return Field(default, description=text, json_schema_extra=extra)


class Part(BaseModel):
    """A part of a result. Setting a field checks nothing: no run may fail when it is all done."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


@dataclass(frozen=True)
class Described:
    """What a field says of itself.

    Args:
        text: Its definition.
        unit: Its unit; None if it has none.
        is_number: Whether each run writes the definition beside it.
    """

    text: str
    unit: str | None = None
    is_number: bool = False


def described(part: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Described]]:
    """Yield every field of a part and of parts in it, by its dotted name."""
    for name, field in part.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        unit = extra.get("unit")
        yield (
            f"{prefix}{name}",
            Described(
                field.description or "",
                unit if isinstance(unit, str) else None,
                bool(extra.get(_DEFINED)),
            ),
        )
        for inner in _parts_of(field.annotation):
            yield from described(inner, f"{prefix}{name}.")


def definitions(part: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the definition of every number of a part and of parts in it."""
    return ((name, field.text) for name, field in described(part) if field.is_number)


def _parts_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts_of(inner)
